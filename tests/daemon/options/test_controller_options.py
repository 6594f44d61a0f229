"""The flags of `capcard-sched controllers`: those of Volcano's controller manager."""

from __future__ import annotations

from pathlib import Path

import pytest
from cyclopts import App

from capcard_sched.cli.controllers import controllers
from capcard_sched.daemon.controller_options import NAMES, ControllerOptions


def parse(*words: str) -> ControllerOptions:
    app = App(result_action="return_value")
    app.default(controllers)
    _, bound, _ = app.parse_args(list(words), exit_on_error=False, print_error=False)
    found: ControllerOptions = bound.arguments.get("options", ControllerOptions())
    return found


def test_the_arguments_of_volcanos_chart_are_accepted_as_they_are() -> None:
    options = parse(
        "--logtostderr",
        "--enable-healthz=true",
        "--enable-metrics=true",
        "--leader-elect=true",
        "--leader-elect-resource-namespace=volcano-system",
        "--kube-api-qps=50",
        "--kube-api-burst=100",
        "--worker-threads=3",
        "--worker-threads-for-gc=5",
        "--worker-threads-for-podgroup=5",
        "--worker-threads-for-queue=5",
        "--max-requeue-num=15",
        "--scheduler-name=volcano",
        "--inherit-owner-annotations=true",
        "-v=4",
        "2>&1",
    )
    assert options.problems() == []
    assert (options.worker_threads, options.worker_threads_for_gc, options.kube_api_qps) == (3, 5, 50.0)
    assert options.scheduler_name == ("volcano",)
    assert options.ignored.given() == {}


def test_a_flag_without_effect_has_its_reason() -> None:
    options = parse(
        "--feature-gates=WorkLoadSupport=true,NamespaceQueue=false",
        "--sharding-configmap=c",
        "--sharding-configmap-namespace=volcano-system",
        "--hypernode-controller-mode=standalone",
        "--ca-cert-file=/ca",
        "--tls-cert-file=/crt",
        "--tls-private-key-file=/key",
        "--lock-object-namespace=volcano-system",
        "--worker-threads-for-cronjob=3",
        "--controllers=*,-sharding-controller,-hyperNode-controller",  # Volcano's spelling
    )
    assert options.problems() == []
    assert options.given()["--feature-gates"] == (
        "WorkLoadSupport=true: no gate of this program; "
        "NamespaceQueue=false: NamespaceQueues are read wherever their kind is served"
    )
    assert sorted(options.given()) == [
        "--ca-cert-file",
        "--feature-gates",
        "--hypernode-controller-mode",
        "--lock-object-namespace",
        "--sharding-configmap",
        "--sharding-configmap-namespace",
        "--tls-cert-file",
        "--tls-private-key-file",
        "--worker-threads-for-cronjob",
    ]
    assert options.enabled == {*NAMES} - {"hypernode-controller"}


def test_a_controller_of_volcano_that_does_not_exist_here_has_no_effect() -> None:
    options = parse("--controllers=+pg-controller,+sharding-controller")
    assert options.problems() == []
    assert options.enabled == {"pg-controller"}
    assert options.given() == {"--controllers=+sharding-controller": "there is no such controller"}
    assert parse("--controllers=sharding-controller").enabled == frozenset()


@pytest.mark.parametrize(
    "given, enabled",
    [
        (["*"], {*NAMES}),
        (["+pg-controller"], {"pg-controller"}),
        (["pg-controller", "job-controller"], {"pg-controller", "job-controller"}),
        (["-gc-controller"], {*NAMES} - {"gc-controller"}),
        (["+pg-controller", "-pg-controller"], set()),
    ],
)
def test_the_controllers_to_run(given: list[str], enabled: set[str]) -> None:
    options = parse(*(f"--controllers={word}" for word in given))
    assert options.problems() == []
    assert options.enabled == enabled


@pytest.mark.parametrize(
    "words, problem",
    [
        (["--controllers=*", "--controllers=+pg-controller"], "'*' cannot be combined"),
        (["--controllers=+nodes"], "unknown controller 'nodes'; accepted: *, pg-controller"),
        (["--leader-elect-lease-duration=5s"], "must be longer than --leader-elect-renew-deadline"),
        (["--leader-elect-retry-period=9s"], "must be longer than 1.2 times --leader-elect-retry-period"),
    ],
)
def test_flags_that_do_not_fit_together_are_named(words: list[str], problem: str) -> None:
    (found,) = parse(*words).problems()
    assert problem in found


_DISCOVERY = """
networkTopologyDiscovery:
- source: label
  enabled: true
  config: {networkTopologyTypes: {t: [nodeLabel: rack, nodeLabel: kubernetes.io/hostname]}}
"""


def test_the_configuration_of_hyper_nodes_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "volcano-controller.conf"
    file.write_text(_DISCOVERY)
    options = parse(f"--network-topology-discovery={file}")
    assert (options.problems(), options.given()) == ([], {})
    assert [(each.name, each.labels) for each in options.discovery().types] == [("t", ("rack",))]
    excluded = parse(f"--network-topology-discovery={file}", "--controllers=-hypernode-controller")
    assert excluded.given() == {"--network-topology-discovery": "--controllers excludes hypernode-controller"}
    file.write_text(_DISCOVERY.replace("source: label", "source: ufm"))
    place = f"--network-topology-discovery: {file}: networkTopologyDiscovery[0].source"
    assert options.problems() == [f"{place}: 'ufm' is not supported; accepted: label"]
    file.unlink()
    assert options.problems() == [f"--network-topology-discovery: {file}: No such file or directory"]


def test_the_rules_of_owners_are_a_file_whose_problems_have_their_row_and_field(tmp_path: Path) -> None:
    file = tmp_path / "owner-groups.yaml"
    rule = "when: [a], group: [{name: '{a}'}]"
    file.write_text(f"ownerGroups:\n- {{name: mine, {rule}}}\n")
    options = parse(f"--owner-groups={file}")
    assert options.problems() == []
    assert [each.name for each in options.owner_rules()][:2] == ["mine", "lws"]
    file.write_text(f"ownerGroups:\n- {{name: mine, {rule}}}\n- {{name: other, {rule}, minMember: a +}}\n")
    place = f"--owner-groups: {file}: ownerGroups[1].minMember"
    assert options.problems() == [
        f"{place}: 'a +' is no count; accepted: a number, a path or @label, joined by *, -, min and max"
    ]
    file.unlink()
    assert options.problems() == [f"--owner-groups: {file}: No such file or directory"]
