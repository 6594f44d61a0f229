"""The chart renders the objects of the kustomization, and its values have their documented effect."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from capcard_sched.controllers.owner_rules import built_in_rules, parse_owner_rules
from capcard_sched.model.topology_discovery import read_discovery
from tests.manifests.documents import (
    CHART,
    INSTALL,
    MANIFESTS,
    Manifest,
    by_key,
    key,
    kustomized,
    overlay,
    parsed,
    read,
)

#: Helm's own marks: on every object of a chart, on none of the kustomization.
_HELMS = ("helm.sh/", "app.kubernetes.io/")

CHECK_CAPACITY: Final = "check-capacity.autoscaling.x-k8s.io"
#: Values with every component.
WEB: Final[Manifest] = {"web_enable": True}


def rendered(
    helm: Path, values: Manifest | None = None, *, release: str = "capcard-sched", crds: bool = False
) -> list[Manifest]:
    """Output of Helm for the chart in a namespace `capcard-system`."""
    done = _helm(helm, "template", release, CHART, *(["--include-crds"] if crds else []), values=values)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


def refusal(helm: Path, values: Manifest) -> str:
    """The error of Helm for these values."""
    done = _helm(helm, "template", "capcard-sched", CHART, values=values)
    assert done.returncode != 0, "Helm took it"
    return done.stderr


def _helm(helm: Path, *words: str | Path, values: Manifest | None) -> subprocess.CompletedProcess[str]:
    options = ["--namespace", "capcard-system", "--values", "-"]
    text = yaml.safe_dump(values or {})
    return subprocess.run([helm, *words, *options], input=text, capture_output=True, text=True, check=False)


def plain(manifest: Manifest) -> Manifest:
    """An object without the marks of Helm."""
    stripped = copy.deepcopy(manifest)
    metas = [stripped["metadata"]]
    if stripped["kind"] == "Deployment":
        metas.append(stripped["spec"]["template"]["metadata"])
    for meta in metas:
        for field in ("labels", "annotations"):
            kept = {name: value for name, value in meta.get(field, {}).items() if not name.startswith(_HELMS)}
            meta.pop(field, None)
            if kept:
                meta[field] = kept
    return stripped


def plain_by_key(manifests: list[Manifest]) -> dict[str, Manifest]:
    return by_key(plain(manifest) for manifest in manifests if manifest["kind"] != "Namespace")


def deployment(manifests: list[Manifest], command: str = "run") -> Manifest:
    """The Deployment that runs this subcommand."""
    deployments = (manifest for manifest in manifests if manifest["kind"] == "Deployment")
    (found,) = (each for each in deployments if each["spec"]["template"]["spec"]["containers"][0]["args"][0] == command)
    return found


def container(manifests: list[Manifest], command: str = "run") -> Manifest:
    found: Manifest = deployment(manifests, command)["spec"]["template"]["spec"]["containers"][0]
    return found


def test_the_chart_passes_helm_lint(helm: Path) -> None:
    done = subprocess.run([helm, "lint", "--strict", CHART], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_by_default_the_chart_makes_the_objects_of_the_one_manifest(helm: Path) -> None:
    assert plain_by_key(rendered(helm, crds=True)) == plain_by_key(read(INSTALL))


def test_with_every_feature_it_makes_those_of_the_components(helm: Path, kubectl: Path, tmp_path: Path) -> None:
    ours = kustomized(kubectl, overlay(tmp_path, "eviction-api", "podgroup-status", "provisioning", "web", "budgets"))
    enabled = ("eviction_api_enable", "podgroup_status_enable", "web_enable", "web_budgets_enable")
    custom = {**dict.fromkeys(enabled, True), "provisioning_request_class": CHECK_CAPACITY}
    values = {"custom": {**custom, "controller_enable": False, "admission_enable": False}}
    assert plain_by_key(rendered(helm, values)) == plain_by_key(ours)


@pytest.mark.parametrize("mode", ["standalone", "beside-volcano"])
def test_with_cert_manager_the_chart_makes_the_objects_of_that_component(
    helm: Path, kubectl: Path, tmp_path: Path, mode: str
) -> None:
    resource = "." if mode == "standalone" else mode
    ours = kustomized(kubectl, overlay(tmp_path, "cert-manager", resource=resource))
    values = {"custom": {"mode": mode, "cert_manager_enable": True}}
    found = plain_by_key(rendered(helm, values, crds=mode == "standalone"))
    assert found == plain_by_key(ours)
    configurations = [each for name, each in found.items() if "WebhookConfiguration" in name]
    certificate = found["Certificate capcard-system/capcard-sched-admission"]
    service = by_key(ours)["Service capcard-system/capcard-sched-admission"]["metadata"]
    assert f"{service['name']}.{service['namespace']}.svc" in certificate["spec"]["dnsNames"]
    assert len(configurations) == (3 if mode == "standalone" else 1)
    for each in configurations:
        assert each["metadata"]["annotations"] == {
            "cert-manager.io/inject-ca-from": "capcard-system/capcard-sched-admission"
        }
    rules = [rule for name, each in found.items() if "Role " in name and "admission" in name for rule in each["rules"]]
    assert {word for rule in rules for word in rule["resources"]} == {
        *("queues", "namespacequeues", "namespaces", "priorityclasses")
    }


def test_beside_volcano_the_chart_makes_the_objects_of_that_kustomization(helm: Path, kubectl: Path) -> None:
    ours = kustomized(kubectl, MANIFESTS / "beside-volcano")
    assert plain_by_key(rendered(helm, {"custom": {"mode": "beside-volcano"}})) == plain_by_key(ours)


@pytest.mark.parametrize(
    "custom, pattern",
    [
        ({"volumes_enable": False}, "ClusterRole(Binding)? capcard-sched-volumes"),
        ({"evictions_enable": False}, "ClusterRole(Binding)? capcard-sched-evictions"),
        ({"controller_owner_groups_enable": False}, "ClusterRole(Binding)? capcard-sched-controllers-owners"),
        ({"controller_ssh_enable": False}, "ClusterRole(Binding)? capcard-sched-controllers-ssh"),
        ({"controller_enable": False}, ".*capcard-sched-controllers.*"),
        ({"admission_enable": False}, ".*capcard-sched-admission.*"),
        ({"network_policy_enable": False}, "NetworkPolicy .*"),
        ({"tenant_policy_enable": False, "fence_enable": False}, "ValidatingAdmissionPolicy.*"),
        (
            {"scheduler_replicas": 1, "leader_elect_enable": False},
            "Role(Binding)? .*/capcard-sched-leader-election|ValidatingAdmissionPolicy(Binding)? .*-fence",
        ),
    ],
    ids=str,
)
def test_a_value_removes_its_objects_and_no_others(helm: Path, custom: Manifest, pattern: str) -> None:
    every, left = by_key(rendered(helm)).keys(), by_key(rendered(helm, {"custom": custom})).keys()
    assert every - left == {name for name in every if re.fullmatch(pattern, name)} != set()
    assert left <= every


def test_a_discovery_is_mounted_with_its_rights(helm: Path) -> None:
    text = (
        "networkTopologyDiscovery:\n- source: label\n  enabled: true\n  config:\n    networkTopologyTypes:\n"
        "      t: [{nodeLabel: rack}, {nodeLabel: kubernetes.io/hostname}]\n"
    )
    rules = [{"name": "spark", "enabled": False}]
    objects = rendered(helm, {"custom": {"controller_config_override": text, "controller_owner_groups": rules}})
    found = by_key(objects)
    [file] = [
        one for name, one in found.items() if name.startswith("ConfigMap capcard-system/capcard-sched-discovery-")
    ]
    assert [each.labels for each in read_discovery(file["data"]["volcano-controller.conf"]).types] == [("rack",)]
    given = container(objects, "controllers")
    path = "/etc/capcard-sched-discovery"
    assert f"--network-topology-discovery={path}/volcano-controller.conf" in given["args"]
    assert given["volumeMounts"][1] == {"name": "discovery", "mountPath": path, "readOnly": True}
    pods = found["Deployment capcard-system/capcard-sched-controllers"]["spec"]["template"]["spec"]
    assert pods["volumes"][1] == {"name": "discovery", "configMap": {"name": file["metadata"]["name"]}}
    [source] = [one for one in read(MANIFESTS / "hyper-nodes" / "rbac.yaml") if one["kind"] == "ClusterRole"]
    assert found["ClusterRole capcard-sched-controllers-hyper-nodes"]["rules"] == source["rules"]
    assert "source ufm is not supported; accepted: label" in refusal(
        helm, {"custom": {"controller_config_override": text.replace("source: label", "source: ufm")}}
    )
    plain = by_key(rendered(helm, {"custom": {"controller_config_override": None}}))
    assert not [name for name in plain if "discovery" in name or "hyper-nodes" in name]


def test_rules_for_owners_are_mounted_and_their_kinds_are_readable(helm: Path) -> None:
    rule = {
        "name": "my-trainer",
        "when": ["example.com/trainer"],
        "group": [{"name": "trainer-{example.com/trainer}"}],
        "owners": [{"apiVersion": "example.com/v1", "kind": "Trainer", "resource": "trainers"}],
        "ownerName": "{example.com/trainer}",
    }
    off = {"name": "spark", "enabled": False}
    objects = rendered(helm, {"custom": {"controller_owner_groups": [rule, off]}})
    found = by_key(objects)
    [file] = [one for name, one in found.items() if name.startswith("ConfigMap capcard-system/capcard-sched-owner-gr")]
    text = file["data"]["owner-groups.yaml"]
    first, *others = [one.name for one in parse_owner_rules(text, built_in_rules())]
    assert first == "my-trainer"
    assert "spark" not in others
    assert "lws" in others
    assert "--owner-groups=/etc/capcard-sched/owner-groups.yaml" in container(objects, "controllers")["args"]
    pods = found["Deployment capcard-system/capcard-sched-controllers"]["spec"]["template"]["spec"]
    assert pods["volumes"] == [{"name": "owner-groups", "configMap": {"name": file["metadata"]["name"]}}]
    rules = found["ClusterRole capcard-sched-controllers-owner-groups"]["rules"]
    assert rules == [{"apiGroups": ["example.com"], "resources": ["trainers"], "verbs": ["get", "list", "watch"]}]
    assert "controller_owner_groups_enable" in refusal(
        helm, {"custom": {"controller_owner_groups": [rule], "controller_owner_groups_enable": False}}
    )


def test_a_fence_is_never_deleted_by_helm(helm: Path) -> None:
    kept = [
        key(manifest)
        for manifest in rendered(helm)
        if manifest["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
    ]
    assert sorted(kept) == [
        "ValidatingAdmissionPolicy capcard-sched-fence",
        "ValidatingAdmissionPolicyBinding capcard-sched-fence",
    ]


def test_every_object_carries_its_release_label(helm: Path) -> None:
    for manifest in rendered(helm, {"custom": {"service_monitor_enable": True, **WEB}}, release="gpu"):
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "gpu", key(manifest)
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert re.fullmatch("gpu-capcard-sched(-controllers|-admission|-web)?", labels["app"])


def test_two_releases_share_no_object_and_no_pods(helm: Path) -> None:
    first, second = rendered(helm), rendered(helm, release="second")
    assert not set(by_key(first)) & set(by_key(second))
    selectors = [deployment(each)["spec"]["selector"]["matchLabels"] for each in (first, second)]
    assert selectors[0] != selectors[1]


def test_roles_and_accounts_of_a_release_belong_together(helm: Path) -> None:
    objects = rendered(helm, {"custom": WEB}, release="gpu")
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
    for command in ("run", "controllers", "admission", "web"):
        assert deployment(objects, command)["spec"]["template"]["spec"]["serviceAccountName"] in accounts
    roles = {each["metadata"]["name"] for each in objects if each["kind"] in {"Role", "ClusterRole"}}
    bindings = [each for each in objects if each["kind"] in {"RoleBinding", "ClusterRoleBinding"}]
    assert {each["roleRef"]["name"] for each in bindings} == roles
    for binding in bindings:
        account = binding["metadata"]["labels"]["app"]
        assert account in accounts
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "capcard-system"}]


def test_the_flags_of_a_release_name_its_own_objects(helm: Path) -> None:
    objects = rendered(helm, {"custom": {"scheduler_name": ["a", "b"]}}, release="gpu")
    found = by_key(objects)
    name = "gpu-capcard-sched-admission"
    assert container(objects, "admission")["args"][2:] == [
        "--scheduler-name=a",
        "--scheduler-name=b",
        "--webhook-namespace=$(POD_NAMESPACE)",
        f"--webhook-service-name={name}",
        f"--webhook-configuration={name},{name}-cards",
        f"--secret-name={name}",
    ]
    cards = found[f"ValidatingWebhookConfiguration {name}-cards"]
    for hook in cards["webhooks"]:
        assert hook["clientConfig"]["service"]["name"] == name
        conditions = {condition["name"]: condition["expression"] for condition in hook["matchConditions"]}
        assert conditions.pop("of-our-scheduler").endswith("in ['a', 'b']")
        exempt = "request.userInfo.username != 'system:serviceaccount:capcard-system:gpu-capcard-sched-controllers'"
        assert conditions == ({"of-users": exempt} if hook["name"] == "validatepod.volcano.sh" else {})
    (queues,) = (
        hook
        for hook in found[f"ValidatingWebhookConfiguration {name}"]["webhooks"]
        if hook["name"] == "validatequeue.volcano.sh"
    )
    for account in ("gpu-capcard-sched", "gpu-capcard-sched-controllers"):
        assert f"'system:serviceaccount:capcard-system:{account}'" in queues["matchConditions"][0]["expression"]
    args = container(objects, "controllers")["args"]
    assert {"--scheduler-name=a", "--scheduler-name=b"} < {*args}
    lease = "gpu-capcard-sched-controllers"
    assert f"--leader-elect-resource-name={lease}" in args
    rules = found[f"Role capcard-system/{lease}-leader-election"]["rules"]
    assert [rule["resourceNames"] for rule in rules if "resourceNames" in rule] == [[lease]]


@pytest.mark.parametrize(
    "values, waits",
    [
        ({}, True),
        ({"controller_enabled_controllers": "*,-gc-controller"}, True),
        ({"controller_enabled_controllers": "pg-controller"}, True),
        ({"controller_enabled_controllers": "*,-pg-controller"}, False),
        ({"controller_enabled_controllers": "job-controller,gc-controller"}, False),
        ({"controller_enable": False}, False),
        ({"mode": "beside-volcano"}, False),
    ],
)
def test_pods_wait_for_podgroups_where_the_chart_installs_their_controller(
    helm: Path, values: Manifest, *, waits: bool
) -> None:
    found = container(rendered(helm, {"custom": values}))["args"]
    assert ("--wait-for-podgroups=true" in found) is waits


@pytest.mark.parametrize(
    "custom, words",
    [
        ({"default_queue": "shared"}, "--default-queue=shared"),
        ({"scheduler_schedule_period": "500ms"}, "--schedule-period=500ms"),
        ({"scheduler_kube_api_qps": 50, "scheduler_kube_api_burst": 100}, "--kube-api-qps=50 --kube-api-burst=100"),
        ({"scheduler_plugins_dir": "/plugins"}, "--plugins-dir=/plugins"),
        ({"ignored_provisioners": "a/b,c/d"}, "--ignored-provisioners=a/b,c/d"),
        ({"scheduler_feature_gates": "A=true,B=false"}, "--feature-gates=A=true,B=false"),
        ({"scheduler_percentage_nodes_to_find": 0}, "--percentage-nodes-to-find=0"),
        ({"controller_enabled_controllers": "*,-gc-controller"}, "--controllers=*,-gc-controller"),
        (
            {"controller_worker_threads": 3, "controller_worker_threads_for_gc": 5},
            "--worker-threads=3 --worker-threads-for-gc=5",
        ),
        ({"admission_feature_gates": "A=true"}, "--feature-gates=A=true"),
        ({"ignored_provisioners": ["a/b", "c/d"]}, "--ignored-provisioners=a/b --ignored-provisioners=c/d"),
        ({"scheduler_kube_api_burst": 1_000_000}, "--kube-api-burst=1000000"),
        ({"scheduler_kube_api_qps": 0.5}, "--kube-api-qps=0.5"),
        ({"scheduler_log_level": 0}, "--v=0"),
        ({"scheduler_log_level": 4}, "--v=4"),
        ({"scheduler_extra_args": ["--log-format=json"]}, "--log-format=json"),
        ({"eviction_api_enable": True}, "--use-eviction-api=true"),
        ({"provisioning_request_class": CHECK_CAPACITY}, f"--provisioning-request-class={CHECK_CAPACITY}"),
        ({"controller_kube_api_qps": 50, "controller_kube_api_burst": 100}, "--kube-api-qps=50 --kube-api-burst=100"),
        ({"controller_log_level": 4}, "--v=4"),
        ({"controller_extra_args": ["--max-requeue-num=-1"]}, "--max-requeue-num=-1"),
        ({"admission_log_level": 0}, "--v=0"),
        ({"web_extra_args": ["--ledger=/ledger/pages.db"]}, "--ledger=/ledger/pages.db"),
        ({"web_ledger": "/ledger/pages.db"}, "--ledger=/ledger/pages.db"),
        (
            {"web_ledger": "postgresql://pages@db/pages", "web_replicas": 2},
            "--ledger=postgresql://pages@db/pages --lease=$(POD_NAMESPACE)/capcard-sched-web",
        ),
        ({"admission_extra_args": ["--log-format=json"]}, "--log-format=json"),
    ],
    ids=str,
)
def test_a_value_becomes_the_flag_of_its_component(helm: Path, custom: Manifest, words: str) -> None:
    component = next(iter(custom)).partition("_")[0]
    command = {"controller": "controllers", "admission": "admission", "web": "web"}.get(component, "run")
    default = container(rendered(helm, {"custom": WEB}), command)["args"]
    assert container(rendered(helm, {"custom": {**WEB, **custom}}), command)["args"] == default + words.split()


@pytest.mark.parametrize(
    "names, words, lease",
    [
        ("gpu", ["--scheduler-name=gpu"], "gpu"),
        (["volcano", "gpu"], ["--scheduler-name=volcano", "--scheduler-name=gpu"], "gpu-volcano"),
        (["b", "a.b", "a-b"], ["--scheduler-name=b", "--scheduler-name=a.b", "--scheduler-name=a-b"], "a-b-a.b-b"),
        ("123", ["--scheduler-name=123"], "123"),
        ("a..b", ["--scheduler-name=a..b"], "a-b-f62b4241"),
        (["x" * 200, "y" * 52], [f"--scheduler-name={'x' * 200}", f"--scheduler-name={'y' * 52}"],
         f"{'x' * 200}-{'y' * 52}"),
        (["x" * 200, "y" * 53], [f"--scheduler-name={'x' * 200}", f"--scheduler-name={'y' * 53}"],
         f"{'x' * 200}-6899fa2c"),
    ],
)  # fmt: skip
def test_the_lease_follows_the_scheduler_names(helm: Path, names: Any, words: list[str], lease: str) -> None:
    from capcard_sched.daemon.options import Options

    objects = rendered(helm, {"custom": {"scheduler_name": names}})
    given = container(objects)["args"]
    assert [word for word in given if word.startswith("--scheduler-name=")] == words
    assert f"--leader-elect-resource-name={lease}" in given
    listed = (names,) if isinstance(names, str) else tuple(names)
    assert Options(scheduler_name=listed).lease_name == lease, "the name the scheduler would choose itself"
    assert Options(scheduler_name=listed, leader_elect_resource_name=lease).problems() == []
    found = by_key(objects)
    role = found["Role capcard-system/capcard-sched-leader-election"]
    assert [rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule] == [[lease]]
    assert found["ValidatingAdmissionPolicyBinding capcard-sched-fence"]["spec"]["paramRef"]["name"] == lease


@pytest.mark.parametrize(
    "basic, image",
    [
        ({}, "capcard-sched:0.1.0"),
        ({"image_registry": "registry.example:5000/team"}, "registry.example:5000/team/capcard-sched:0.1.0"),
        ({"image_tag_version": "edge", "scheduler_image_name": "ours/sched"}, "ours/sched:edge"),
        ({"controller_image_tag_version": "c", "admission_image_tag_version": "a"}, "capcard-sched:c"),
        ({"image_tag_version": "edge", "scheduler_image_tag_version": "s"}, "capcard-sched:edge"),
    ],
)
def test_the_image_is_put_together(helm: Path, basic: Manifest, image: str) -> None:
    assert container(rendered(helm, {"basic": basic}))["image"] == image


@pytest.mark.parametrize(
    "component, command",
    [("scheduler", "run"), ("controller", "controllers"), ("admission", "admission"), ("web", "web")],
)
def test_pod_settings_reach_the_pods_of_their_component(helm: Path, component: str, command: str) -> None:
    settings: Manifest = {
        "replicas": 3,
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "ns": {"pool": "system"},
        "priority_class": "",
        "podLabels": {"team": "ml"},
        "sc": {"runAsUser": None, "runAsGroup": None, "fsGroup": 1},
        "main_csc": {"readOnlyRootFilesystem": None},
        "resources": {"limits": {"memory": "4Gi"}},
    }
    custom = {f"{component}_{name}": value for name, value in settings.items()}
    basic = {"image_pull_secret": "pull", "image_pull_policy": "Always"}
    custom |= WEB
    objects = rendered(helm, {"basic": basic, "custom": {**custom, "common_labels": {"cost": "shared"}}})
    found = deployment(objects, command)
    template = found["spec"]["template"]
    spec, (main,) = template["spec"], template["spec"]["containers"]
    assert found["spec"]["replicas"] == 3
    assert (template["metadata"]["labels"]["team"], template["metadata"]["labels"]["cost"]) == ("ml", "shared")
    assert all(each["metadata"]["labels"]["cost"] == "shared" for each in objects)
    assert (spec["imagePullSecrets"], main["imagePullPolicy"]) == ([{"name": "pull"}], "Always")
    assert (spec["tolerations"], spec["affinity"]) == (settings["tolerations"], settings["affinity"])
    assert spec["nodeSelector"] == settings["ns"]
    seccomp = {"seccompProfile": {"type": "RuntimeDefault"}}
    assert spec["securityContext"] == {"runAsNonRoot": True, "fsGroup": 1, **seccomp}
    assert "readOnlyRootFilesystem" not in main["securityContext"]
    assert main["resources"]["limits"] == {"memory": "4Gi"}
    assert "priorityClassName" not in spec
    other = "run" if component != "scheduler" else "controllers"
    assert "nodeSelector" not in deployment(objects, other)["spec"]["template"]["spec"]


def test_a_conf_of_ones_own_replaces_the_built_in_one(helm: Path) -> None:
    conf = 'actions: "allocate"\ntiers:\n- plugins:\n  - name: gang\n'
    found = by_key(rendered(helm, {"custom": {"scheduler_config_override": conf}}))
    assert found["ConfigMap capcard-system/capcard-sched-conf"]["data"]["scheduler.yaml"].strip() == conf.strip()


def test_a_single_replica_may_run_without_election(helm: Path) -> None:
    objects = rendered(helm, {"custom": {"scheduler_replicas": 1, "leader_elect_enable": False}})
    assert "--leader-elect=false" in container(objects)["args"]
    assert "--fence=true" not in container(objects)["args"]


def test_the_service_monitor_finds_the_port_of_the_service(helm: Path) -> None:
    found = by_key(rendered(helm, {"custom": {"service_monitor_enable": True, "service_monitor_interval": "10s"}}))
    for name in ("capcard-sched", "capcard-sched-controllers", "capcard-sched-admission"):
        monitor = found[f"ServiceMonitor capcard-system/{name}"]["spec"]
        service = found[f"Service capcard-system/{name}"]
        assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        (endpoint,) = monitor["endpoints"]
        assert endpoint["interval"] == "10s"
        assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    beside = {"mode": "beside-volcano", "service_monitor_enable": True}
    assert "ServiceMonitor capcard-system/capcard-sched-controllers" not in by_key(rendered(helm, {"custom": beside}))


def test_the_alerts_of_the_chart_are_those_of_the_component(helm: Path) -> None:
    name = "PrometheusRule capcard-system/capcard-sched"
    found = by_key(rendered(helm, {"custom": {"prometheus_rule_enable": True}}))[name]
    (expected,) = read(MANIFESTS / "alerts" / "prometheusrule.yaml")
    assert found["spec"] == expected["spec"]
    assert name not in by_key(rendered(helm))


def test_the_pages_find_the_conf_and_the_secret_of_their_release(helm: Path) -> None:
    custom = {
        **WEB,
        "scheduler_name": ["a", "b"],
        "web_authentication": "proxy",
        "web_extra_args": ["--proxy-secret=/proxy/secret"],
        "web_volumes": [{"name": "proxy", "secret": {"secretName": "pages"}}],
        "web_volume_mounts": [{"name": "proxy", "mountPath": "/proxy"}],
    }
    objects = rendered(helm, {"custom": custom}, release="gpu")
    made = container(objects, "web")
    (conf,) = (word for word in made["args"] if word.startswith("--installed-conf="))
    assert conf == "--installed-conf=$(POD_NAMESPACE)/gpu-capcard-sched-conf"
    assert by_key(objects)["Role capcard-system/gpu-capcard-sched-web"]["rules"][0]["resourceNames"] == [
        "gpu-capcard-sched-conf"
    ]
    assert {"--scheduler-name=a", "--scheduler-name=b"} < {*made["args"]}
    assert {"--authentication=proxy", "--proxy-secret=/proxy/secret"} < {*made["args"]}
    mounts = {mount["name"] for mount in made["volumeMounts"]}
    assert mounts == {volume["name"] for volume in deployment(objects, "web")["spec"]["template"]["spec"]["volumes"]}
    assert mounts == {"tmp", "proxy"}


def test_replicas_of_the_pages_get_a_lease_and_the_password_of_their_ledger(helm: Path) -> None:
    custom = {**WEB, "web_replicas": 2, "web_ledger": "postgresql://pages@db/pages", "web_ledger_secret": "db"}
    objects = rendered(helm, {"custom": custom})
    assert deployment(objects, "web")["spec"]["replicas"] == 2
    (password,) = [one for one in container(objects, "web")["env"] if one["name"] == "PGPASSWORD"]
    assert password["valueFrom"] == {"secretKeyRef": {"name": "db", "key": "password"}}
    found, expected = plain_by_key(objects), plain_by_key(read(MANIFESTS / "web-lease" / "rbac.yaml"))
    assert {key: found[key] for key in expected} == expected
    assert not set(expected) & set(by_key(rendered(helm, {"custom": {**WEB, "web_ledger": "/pages.db"}})))
    other = by_key(rendered(helm, {"custom": custom}, release="gpu"))
    names = [rule.get("resourceNames") for rule in other["Role capcard-system/gpu-capcard-sched-web-lease"]["rules"]]
    assert names == [None, ["gpu-capcard-sched-web"]]
    assert "--lease=$(POD_NAMESPACE)/gpu-capcard-sched-web" in container([*other.values()], "web")["args"]


def test_users_of_other_schedulers_can_be_exempt_from_the_tenant_policies(helm: Path) -> None:
    custom = {"tenant_policy_exempt_users": ["alice"], "tenant_policy_exempt_groups": []}
    found = by_key(rendered(helm, {"custom": custom}, release="gpu"))
    for suffix in ("pods", "podgroups", "priority"):
        conditions = found[f"ValidatingAdmissionPolicy gpu-capcard-sched-{suffix}"]["spec"]["matchConditions"]
        (tenant,) = [each["expression"] for each in conditions if each["name"] == "tenant"]
        assert "in ['alice']" in tenant
        assert "system:serviceaccounts:capcard-system" in tenant


def test_metrics_are_open_to_the_namespace_with_the_given_labels_only(helm: Path) -> None:
    labels = {"team": "observability"}
    found = by_key(
        rendered(helm, {"custom": {"metrics_namespace_labels": {"kubernetes.io/metadata.name": None, **labels}}})
    )
    policy = found["NetworkPolicy capcard-system/capcard-sched"]["spec"]
    pod = deployment(rendered(helm))["spec"]["template"]
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": labels}}]
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    assert [port["port"] for port in rule["ports"]] == ["metrics"]
    assert set(ports) == {"metrics", "healthz"}


@pytest.mark.parametrize(
    "values, output",
    [
        ({"strictValues": True, "custom": {"scheduler_replica": 3}}, "unknown value custom.scheduler_replica; did you"),
        ({"strictValues": True, "customs": {}}, "unknown value customs; did you mean custom?"),
        ({"custom": {"agent_scheduler_enable": True}}, "custom.agent_scheduler_enable: true is not supported"),
        ({"custom": {"scheduler_sharding_mode": "hard"}}, "custom.scheduler_sharding_mode: hard is not supported"),
        ({"custom": {"scheduler_sharding_mode": "soft", "sharding_configmap_data": "a: b"}}, "soft is not supported"),
        ({"custom": {"scheduler_replicas": "two"}}, "scheduler_replicas"),
        ({"custom": {"scheduler_replicas": -1}}, "scheduler_replicas"),
        ({"custom": {"scheduler_name": []}}, "scheduler_name"),
        ({"custom": {"scheduler_name": "Not A Name"}}, "scheduler_name"),
        ({"custom": {"scheduler_podLabels": {"app": "mine"}}}, "app"),
        ({"custom": {"mode": "with-volcano"}}, "mode"),
        ({"custom": {"web_authentication": "none"}}, "web_authentication"),
        ({"custom": {"scheduler_log_level": "debug"}}, "scheduler_log_level"),
        ({"basic": {"image_pull_policy": "Sometimes"}}, "image_pull_policy"),
        ({"custom": {"leader_elect_enable": False}}, "two replicas would both schedule"),
        ({"custom": {"tenant_policy_exempt_users": ["it's"]}}, "tenant_policy_exempt_users"),
        (
            {"custom": {**WEB, "web_ledger": "/ledger/pages.db", "web_replicas": 2}},
            "custom.web_replicas above 1 needs custom.web_ledger: postgresql://...: several replicas cannot record in",
        ),
        (
            {"custom": {**WEB, "web_extra_args": ["--ledger=/pages.db"], "web_replicas": 2}},
            "custom.web_replicas above 1 needs custom.web_ledger",
        ),
        (
            {"custom": {**WEB, "web_extra_args": ["--ledger=postgresql://db/x"]}},
            "needs custom.web_ledger, which grants",
        ),
        (
            {"custom": {**WEB, "web_extra_args": ["--ledger=/a.db"], "web_ledger": "/b.db"}},
            "custom.web_ledger names the database already",
        ),
        ({"custom": {**WEB, "web_ledger_secret": "db"}}, "custom.web_ledger_secret: has no effect"),
        ({"custom": {**WEB, "web_ledger": "mysql://db/x"}}, "web_ledger"),
    ],
)
def test_wrong_values_are_refused_by_name(helm: Path, values: Manifest, output: str) -> None:
    assert output in refusal(helm, values)


#: Values of Volcano's chart 1.16, beside those with an effect here.
FOREIGN: Manifest = {
    "basic": {"agent_image_tag_version": "v1", "admission_port": 8443, "controller_image_name": "c"},
    "custom": {
        "agent_scheduler_enable": False,
        "agent_scheduler_replicas": 1,
        "agent_kube_cgroup_root": "/sys/fs/cgroup",
        "hypernode_controller_mode": "standalone",
        "hypernode_controller_replicas": 1,
        "go_memlimit_enable": True,
        "admission_init_ttl": 60,
        "vap_enable": False,
        "map_enable": False,
        "scheduler_sharding_mode": "none",
        "sharding_configmap_enable": True,
        "sharding_configmap_data": None,
        "metrics_enable": False,
        "colocation_enable": False,
        "enabled_admissions": "/jobs/mutate",
        "default_sc": {"runAsUser": 1},
    },
    "service": {"ipFamilyPolicy": "SingleStack"},
}


def notes(helm: Path, folder: Path, values: Manifest) -> list[str]:
    """The notes of a release; `helm template` has none, so that a copy of the chart renders them as an object."""
    copied = shutil.copytree(CHART, folder / "chart")
    shutil.copy(CHART / "templates" / "NOTES.txt", copied / "files" / "NOTES.txt")
    text = '{{ tpl (.Files.Get "files/NOTES.txt") . | toJson }}'
    head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\n"
    (copied / "templates" / "notes.yaml").write_text(f"{head}data: {{text: {text}}}\n")
    done = _helm(helm, "template", "capcard-sched", copied, "--show-only", "templates/notes.yaml", values=values)
    assert done.returncode == 0, done.stderr
    found: str = yaml.safe_load(done.stdout)["data"]["text"]
    return [line.strip() for line in found.splitlines()]


def test_the_notes_list_the_values_of_volcano_without_effect(helm: Path, tmp_path: Path) -> None:
    lines = notes(helm, tmp_path, FOREIGN)
    listed = {line.partition(":")[0] for line in lines[lines.index("Values without effect:") + 1 :] if line}
    paths = {
        f"{part}.{name}" for part in ("basic", "custom") for name, value in FOREIGN[part].items() if value is not None
    }
    assert listed == {*paths, "service"}


def test_values_of_volcano_without_effect_change_no_object(helm: Path) -> None:
    assert by_key(rendered(helm, FOREIGN)) == by_key(rendered(helm))


def test_values_that_volcano_leaves_empty_keep_the_defaults(helm: Path) -> None:
    empty = (
        "scheduler_name",
        "scheduler_config_override",
        "scheduler_plugins_dir",
        "scheduler_feature_gates",
        "default_ns",
    )
    assert by_key(rendered(helm, {"custom": dict.fromkeys(empty)})) == by_key(rendered(helm))


def test_the_notes_name_unknown_values_and_the_nearest_one(helm: Path, tmp_path: Path) -> None:
    lines = notes(helm, tmp_path, {"custom": {"schedulr_replicas": 3, "zzz": 1}, "customs": {}})
    begin = lines.index("Unknown values, without effect (errors with strictValues: true):") + 1
    assert [line for line in lines[begin:] if line] == [
        "unknown value customs; did you mean custom?",
        "unknown value custom.schedulr_replicas; did you mean custom.scheduler_replicas?",
        "unknown value custom.zzz",
    ]
    assert "Values without effect:" not in lines


def test_the_notes_mention_no_values_by_default(helm: Path, tmp_path: Path) -> None:
    assert not any("effect" in line or "All components" in line for line in notes(helm, tmp_path, {}))


def test_the_notes_mention_that_all_components_have_one_image(helm: Path, tmp_path: Path) -> None:
    tags = {"scheduler_image_tag_version": "a", "admission_image_tag_version": "b"}
    assert any(line.startswith("All components have one image.") for line in notes(helm, tmp_path, {"basic": tags}))
