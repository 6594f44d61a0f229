"""Derived files follow their sources, and the objects of one installation refer to each other by their names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import capcard_sched
from capcard_sched.cli.run import run
from capcard_sched.daemon.options import Options
from capcard_sched.framework.conf.registry import Registry
from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.kube.fence import policy_objects
from capcard_sched.kube.kinds import KINDS
from tests.manifests.documents import CHART, INSTALL, MANIFESTS, ROOT, Manifest, by_key, derived, kustomized, read

FOLDER_FILES = sorted(path for path in MANIFESTS.rglob("*.yaml") if "templates" not in path.parts)
OURS = by_key(document for document in read(INSTALL) if document["kind"] != "CustomResourceDefinition")


def deployment() -> Manifest:
    return OURS["Deployment capcard-system/capcard-sched"]


def arguments() -> list[str]:
    words: list[str] = deployment()["spec"]["template"]["spec"]["containers"][0]["args"]
    return [word.replace("$(POD_NAMESPACE)", "capcard-system") for word in words]


def options() -> Options:
    from cyclopts import App

    app = App(result_action="return_value")
    app.command(run, name="run")
    _, bound, _ = app.parse_args(arguments(), exit_on_error=False, print_error=False)
    taken: Options = bound.arguments["options"]
    return taken


@pytest.mark.parametrize("path", sorted(derived()), ids=lambda path: str(path.relative_to(MANIFESTS)))
def test_a_derived_file_is_current(path: Path) -> None:
    assert path.exists(), "run `make manifests`"
    assert path.read_text("utf-8") == derived()[path], "run `make manifests`"


def test_the_chart_has_no_crd_that_is_not_derived() -> None:
    assert {path for path in derived() if path.parent == CHART / "crds"} == set((CHART / "crds").iterdir())


@pytest.mark.parametrize("path", FOLDER_FILES, ids=lambda path: str(path.relative_to(MANIFESTS)))
def test_every_file_is_yaml(path: Path) -> None:
    assert read(path) or path.name == "values.yaml"


def test_the_one_manifest_is_what_kustomize_makes_of_the_folder(kubectl: Path) -> None:
    assert by_key(read(INSTALL)) == by_key(kustomized(kubectl, MANIFESTS))


def test_every_crd_is_in_the_one_manifest() -> None:
    there = {document["metadata"]["name"] for path in (MANIFESTS / "crds").glob("*.yaml") for document in read(path)}
    installed = {each["metadata"]["name"] for each in read(INSTALL) if each["kind"] == "CustomResourceDefinition"}
    assert installed == there


def test_the_mounted_conf_is_the_built_in_one() -> None:
    text = OURS["ConfigMap capcard-system/capcard-sched-conf"]["data"]["scheduler.yaml"]
    assert text == (ROOT / "config" / "scheduler.yaml").read_text("utf-8")
    result = parse_conf(text, registry=Registry.load())
    assert result.conf is not None
    assert not result.problems


def test_the_image_and_the_chart_have_the_version_of_the_package() -> None:
    container = deployment()["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == f"capcard-sched:{capcard_sched.__version__}"
    (chart,) = read(CHART / "Chart.yaml")
    assert (chart["version"], chart["appVersion"]) == (capcard_sched.__version__, capcard_sched.__version__)


def test_the_daemon_takes_the_arguments_and_finds_nothing_wrong_with_them() -> None:
    assert options().problems() == []
    assert options().without_effect() == {}
    assert options().scheduler_name == ("capcard-sched",)


def test_the_conf_is_mounted_where_the_daemon_looks() -> None:
    pod = deployment()["spec"]["template"]["spec"]
    (mount,) = (each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "conf")
    conf = options().scheduler_conf
    assert conf is not None
    assert str(conf.parent) == mount["mountPath"]
    assert "subPath" not in mount, "a file mounted alone never changes"
    (volume,) = (each for each in pod["volumes"] if each["name"] == "conf")
    assert conf.name in OURS[f"ConfigMap capcard-system/{volume['configMap']['name']}"]["data"]


def test_dumps_go_where_can_be_written() -> None:
    pod = deployment()["spec"]["template"]["spec"]
    (mount,) = (each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "dumps")
    assert str(options().cache_dump_dir) == mount["mountPath"]
    assert [each for each in pod["volumes"] if each["name"] == "dumps" and "emptyDir" in each]


def test_ports_probes_and_annotations_meet_the_servers() -> None:
    container = deployment()["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"metrics": options().listen_address.port, "healthz": options().healthz_address.port}
    assert options().enable_healthz
    assert options().enable_metrics
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "healthz"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "healthz"}
    service = OURS["Service capcard-system/capcard-sched"]
    assert service["metadata"]["annotations"]["prometheus.io/port"] == str(ports["metrics"])
    assert [(port["name"], port["targetPort"]) for port in service["spec"]["ports"]] == [("metrics", "metrics")]


def test_the_lease_the_daemon_takes_is_the_one_it_may_take() -> None:
    role = OURS["Role capcard-system/capcard-sched-leader-election"]
    named = [rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule]
    assert named == [[options().lease_name]]
    assert options().lease_namespace == role["metadata"]["namespace"]
    policy = by_key(read(MANIFESTS / "base" / "admission-fence.yaml"))
    parameter = policy["ValidatingAdmissionPolicyBinding capcard-sched-fence"]["spec"]["paramRef"]
    assert (parameter["namespace"], parameter["name"]) == (options().lease_namespace, options().lease_name)


def test_the_policy_of_the_fence_is_the_one_the_scheduler_expects() -> None:
    assert read(MANIFESTS / "base" / "admission-fence.yaml") == policy_objects()


def test_whoever_is_selected_or_referred_to_is_there() -> None:
    labels = deployment()["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        deployment()["spec"]["selector"]["matchLabels"],
        OURS["Service capcard-system/capcard-sched"]["spec"]["selector"],
        OURS["PodDisruptionBudget capcard-system/capcard-sched"]["spec"]["selector"]["matchLabels"],
        *(
            row["labelSelector"]["matchLabels"]
            for row in deployment()["spec"]["template"]["spec"]["topologySpreadConstraints"]
        ),
    ]
    assert all(selector.items() <= labels for selector in selectors)
    account = deployment()["spec"]["template"]["spec"]["serviceAccountName"]
    assert f"ServiceAccount capcard-system/{account}" in OURS
    bindings = [each for each in OURS.values() if each["kind"] in {"RoleBinding", "ClusterRoleBinding"}]
    for binding in bindings:
        namespace = f"{binding['metadata']['namespace']}/" if binding["kind"] == "RoleBinding" else ""
        assert f"{binding['roleRef']['kind']} {namespace}{binding['roleRef']['name']}" in OURS
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "capcard-system"}]
    roles = {each["metadata"]["name"] for each in OURS.values() if each["kind"] in {"Role", "ClusterRole"}}
    assert {binding["roleRef"]["name"] for binding in bindings} == roles


def test_what_is_watched_may_be_listed_and_watched_and_nothing_else() -> None:
    watched = {(group_of(kind.path), kind.resource) for kind in KINDS}
    for verb in ("list", "watch"):
        allowed = {
            (group, resource)
            for role in OURS.values()
            if role["kind"] == "ClusterRole"
            for rule in role["rules"]
            if verb in rule["verbs"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }
        assert allowed == watched


def group_of(path: str) -> str:
    """The API group of a collection's path: "" for `/api/v1/pods`."""
    return "" if path.startswith("/api/") else path.split("/")[2]


def test_no_right_is_granted_by_wildcard_or_twice() -> None:
    granted: list[tuple[str, str, str]] = []
    for role in (each for each in OURS.values() if each["kind"] in {"Role", "ClusterRole"}):
        for rule in role["rules"]:
            assert "nonResourceURLs" not in rule
            granted += [
                (group, resource, verb)
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
            ]
    assert not [right for right in granted if "*" in right]
    assert len(set(granted)) == len(granted)


def test_the_account_cannot_read_secrets_or_raise_its_rights() -> None:
    resources = {
        resource
        for role in OURS.values()
        if role["kind"] in {"Role", "ClusterRole"}
        for rule in role["rules"]
        for resource in rule["resources"]
    }
    forbidden = {"secrets", "serviceaccounts", "serviceaccounts/token", "roles", "clusterroles", "pods/exec"}
    assert not resources & forbidden


def test_everything_of_ours_carries_the_label_of_the_app() -> None:
    for name, manifest in OURS.items():
        if manifest["kind"] != "Namespace":
            assert manifest["metadata"].get("labels", {}).get("app") == "capcard-sched", name


def reasons() -> dict[tuple[str, str], set[str]]:
    """The rows of the table in docs/install.md: (role, resource) to verbs."""
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    rows = re.findall(r"^\| `(capcard-sched[a-z-]*)` \| `([^`]+)` \| ([a-z, ]+) \|", page, re.MULTILINE)
    found: dict[tuple[str, str], set[str]] = {}
    for role, resource, verbs in rows:
        found.setdefault((role, resource), set()).update(verbs.split(", "))
    return found


def test_the_page_gives_a_reason_for_every_right_and_no_other() -> None:
    granted: dict[tuple[str, str], set[str]] = {}
    files = (MANIFESTS / name / "rbac.yaml" for name in ("eviction-api", "podgroup-status", "devices"))
    optional = [document for file in files for document in read(file)]
    for role in (each for each in [*OURS.values(), *optional] if each["kind"] in {"Role", "ClusterRole"}):
        for rule in role["rules"]:
            for resource in rule["resources"]:
                granted.setdefault((role["metadata"]["name"], resource), set()).update(rule["verbs"])
    assert reasons() == granted


def test_values_have_a_schema_and_every_value_is_in_it() -> None:
    (values,) = read(CHART / "values.yaml")
    schema = yaml.safe_load((CHART / "values.schema.json").read_text("utf-8"))["properties"]
    for section in values:
        assert set(values[section]) == set(schema[section]["properties"]), section
        assert schema[section]["additionalProperties"] is False, "a misspelt value must be an error"


def test_objects_of_the_components_have_names_of_their_own() -> None:
    names = ("eviction-api/rbac.yaml", "podgroup-status/rbac.yaml", "devices/rbac.yaml")
    files = [MANIFESTS / name for name in names]
    optional = by_key(document for file in files for document in read(file))
    assert not set(optional) & set(OURS)


def test_the_commands_of_the_page_name_what_is_there() -> None:
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    named = set(re.findall(r"(?<![\w/.])manifests(?:/[\w.-]+)*", page))
    assert len(named) > 5
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing
    assert f"capcard-sched:{capcard_sched.__version__}" in page


def test_the_page_lists_the_flags_of_the_deployment() -> None:
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    listed = dict(re.findall(r"^\| `(--[a-z-]+)` \| `?([^|`]+?)`? \|", page, re.MULTILINE))
    words = deployment()["spec"]["template"]["spec"]["containers"][0]["args"][1:]
    given = {name: value for name, _, value in (word.partition("=") for word in words)}
    assert listed == given | {"--leader-elect-resource-namespace": "namespace of the pod"}
