"""The flags of `run`: Volcano's flags and defaults, Go's spellings, errors with the accepted form."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread

import cyclopts
import pytest

from capcard_sched.cli.commands import app
from capcard_sched.cli.main import run
from capcard_sched.daemon.flag_values import AddressFlag, LabelMatch
from capcard_sched.daemon.observability.logs import Logs
from capcard_sched.daemon.options import ENVIRONMENT, Options
from capcard_sched.daemon.service import Service

pytestmark = pytest.mark.processes


def parse(*arguments: str) -> Options:
    """The options that a command line comes to."""
    _, bound, *_ = app.parse_args(["run", *arguments], exit_on_error=False, print_error=False)
    options = bound.arguments.get("options", Options())
    assert isinstance(options, Options)
    return options


def refusal(*arguments: str) -> str:
    """Messages for a command line that cannot be used."""
    with pytest.raises(cyclopts.CycloptsError) as caught:
        parse(*arguments)
    return " ".join(str(caught.value).split())


def help_of(columns: int) -> str:
    """The help on a terminal of that width. Of a new process: widths are remembered in one."""
    command: list[str | Path] = [Path(sys.executable).with_name("capcard-sched"), "run", "--help"]
    environment = {**os.environ, "COLUMNS": str(columns)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def wide_help() -> str:
    """On a terminal so wide that nothing is wrapped."""
    return help_of(300)


@pytest.mark.parametrize("columns", [80, 60, 120])
def test_no_flag_is_cut_in_two_on_a_narrow_terminal(columns: int) -> None:
    shown = help_of(columns)
    for item in dataclasses.fields(Options):
        if item.name not in {"ignored", "verbosity"}:
            assert re.search(rf"│ (-v )?{spelled(item.name)}( |$)", shown, re.MULTILINE), item.name
    assert max(map(len, shown.splitlines())) <= columns


# Volcano's flags, and the logging flags of its libraries.
REFERENCE = {
    "master": "",
    "kubeconfig": None,
    "scheduler_conf": None,
    "schedule_period": 1.0,
    "default_queue": "default",
    "leader_elect": True,
    "leader_elect_lease_duration": 15.0,
    "leader_elect_renew_deadline": 10.0,
    "leader_elect_retry_period": 2.0,
    "leader_elect_resource_lock": "leases",
    "lock_object_namespace": "",
    "kube_api_qps": 2000.0,
    "kube_api_burst": 2000,
    "listen_address": AddressFlag("", 8080),
    "enable_metrics": False,
    "enable_healthz": False,
    "healthz_address": AddressFlag("", 11251),
    "ca_cert_file": None,
    "tls_cert_file": None,
    "tls_private_key_file": None,
    "priority_class": True,
    "plugins_dir": None,
    "node_selector": (),
    "cache_dumper": True,
    "cache_dump_dir": Path("/tmp"),
    # Ours: Volcano's default is `volcano`, and our Lease follows the scheduler name and the scheduler's namespace.
    "scheduler_name": ("capcard-sched",),
    "leader_elect_resource_name": "",
    "leader_elect_resource_namespace": "",
}
WITHOUT_EFFECT = {
    "resync_period": 0.0,
    "minimum_feasible_nodes": 100,
    "minimum_percentage_nodes_to_find": 5,
    "percentage_nodes_to_find": 0,
    "csi_storage": False,
    "node_worker_threads": 20,
    "ignored_provisioners": (),
    "feature_gates": "",
    "enable_pprof": False,
    "log_flush_frequency": 5.0,
}


def spelled(field: str) -> str:
    return f"--{field.replace('_', '-')}"


@pytest.mark.parametrize("field, default", REFERENCE.items(), ids=list(REFERENCE))
def test_every_flag_of_volcano_has_its_default_and_is_in_the_help(field: str, default: object, wide_help: str) -> None:
    assert getattr(parse(), field) == default
    assert f" {spelled(field)} " in wide_help


@pytest.mark.parametrize("field, default", WITHOUT_EFFECT.items(), ids=list(WITHOUT_EFFECT))
def test_an_ignored_flag_is_accepted_and_the_help_has_the_reason(field: str, default: object, wide_help: str) -> None:
    assert getattr(parse().ignored, field) == default
    value = {bool: "true", int: "7", float: "7s"}.get(type(default), "x")
    options = parse(f"{spelled(field)}={value}")
    assert getattr(options.ignored, field) != default
    assert list(options.ignored.given()) == [spelled(field)]
    line = next(line for line in wide_help.splitlines() if f" {spelled(field)} " in line)
    assert "No effect: " in line


def test_all_invalid_combinations_are_reported_at_once() -> None:
    assert len(parse("--fence", "--leader-elect=false", "--strict-conf", "--ca-cert-file=/c").problems()) == 3


def test_the_arguments_of_the_users_deployments_are_accepted_as_they_are() -> None:
    options = parse(
        "--logtostderr",
        "--scheduler-conf=/volcano.scheduler/volcano-scheduler.conf",
        "--enable-healthz=true",
        "--enable-metrics=true",
        "--leader-elect=true",
        "--kube-api-qps=2000",
        "--kube-api-burst=2000",
        "--schedule-period=3s",
        "--node-worker-threads=20",
        "-v=3",
        "2>&1",
    )
    assert options.summary() == {
        "scheduler_conf": "/volcano.scheduler/volcano-scheduler.conf",
        "enable_healthz": True,
        "enable_metrics": True,
        "schedule_period": 3.0,
        "verbosity": 3,
    }
    assert options.ignored.given() == {}
    assert options.problems() == []


CHECK_CAPACITY = "check-capacity.autoscaling.x-k8s.io"
ACCEPTED = [
    (["--enable-healthz"], "enable_healthz", True),
    (["--enable-healthz=true"], "enable_healthz", True),
    (["--enable-healthz=1"], "enable_healthz", True),
    (["--leader-elect=false"], "leader_elect", False),
    (["--leader-elect=F"], "leader_elect", False),
    (["--leader_elect=false"], "leader_elect", False),
    (["-v", "3"], "verbosity", 3),
    (["-v=4"], "verbosity", 4),
    (["-v5"], "verbosity", 5),
    (["--v=2"], "verbosity", 2),
    (["--v", "2"], "verbosity", 2),
    (["--schedule-period", "500ms"], "schedule_period", 0.5),
    (["--schedule-period=1m30s"], "schedule_period", 90.0),
    (["--scheduler-name=a", "--scheduler-name", "b", "--scheduler-name=a"], "scheduler_name", ("a", "b")),
    (["--scheduler-conf="], "scheduler_conf", None),
    (["--kubeconfig", "~/x"], "kubeconfig", Path("~/x")),
    (["--kube-api-qps=0.5"], "kube_api_qps", 0.5),
    (["--listen-address=127.0.0.1:0"], "listen_address", AddressFlag("127.0.0.1", 0)),
    (["--listen-address=[::1]:80"], "listen_address", AddressFlag("::1", 80)),
    (["--healthz-address=localhost:65535"], "healthz_address", AddressFlag("localhost", 65535)),
    (
        ["--node-selector=zone:a,kubernetes.io/arch:arm64", "--node-selector", "x:"],
        "node_selector",
        (LabelMatch("zone", "a"), LabelMatch("kubernetes.io/arch", "arm64"), LabelMatch("x", "")),
    ),
    (["--log-format=console"], "log_format", "console"),
    (["--record", "/tmp/r.jsonl"], "record", Path("/tmp/r.jsonl")),
    (["--use-eviction-api", "--fence"], "fence", True),
    ([f"--provisioning-request-class={CHECK_CAPACITY}"], "provisioning_request_class", CHECK_CAPACITY),
]


@pytest.mark.parametrize("arguments, field, value", ACCEPTED, ids=[" ".join(case[0]) for case in ACCEPTED])
def test_a_value_is_read_in_every_spelling_of_go(arguments: list[str], field: str, value: object) -> None:
    assert getattr(parse(*arguments), field) == value


REFUSED = [
    (["--provisioning-request-class=check-capacity"], "for --provisioning-request-class", CHECK_CAPACITY),
    (["--leader-elect=maybe"], "--leader-elect: unable to convert", "bool"),
    (["--schedule-period=10"], "--schedule-period: '10' is not a duration", "use 30s, 5m or 1h30m"),
    (["--schedule-period=0s"], "--schedule-period: '0s': must be > 0", "500ms, 1s or 1m30s"),
    (["--schedule-period=-1s"], "--schedule-period: '-1s' is negative", "500ms, 1s or 1m30s"),
    (["--schedule-period"], "--schedule-period requires an argument", ""),
    (["--leader-elect-retry-period=2"], "--leader-elect-retry-period: '2' is not a duration", "use 30s"),
    (["--leader-elect-resource-lock=endpoints"], "--leader-elect-resource-lock", 'Choose from: "leases"'),
    (["--listen-address=8080"], "--listen-address: '8080' is not an address", "host:port such as :8080"),
    (["--listen-address=:"], "--listen-address: ':' is not an address", "host:port such as :8080"),
    (["--listen-address=::1:80"], "--listen-address: '::1:80' is not an address", "[::1]:8080"),
    (["--listen-address=[::1:80"], "--listen-address: '[::1:80' is not an address", "[::1]:8080"),
    (["--healthz-address=:65536"], "--healthz-address: ':65536' is not an address", "host:port such as :8080"),
    (["--healthz-address=:٣"], "--healthz-address: ", "host:port such as :8080"),
    (["--kube-api-qps=0"], "--kube-api-qps: '0' is not a rate", "a number above 0"),
    (["--kube-api-qps=nan"], "--kube-api-qps: 'nan' is not a rate", "a number above 0"),
    (["--kube-api-qps=many"], "--kube-api-qps: 'many' is not a rate", "a number above 0"),
    (["--kube-api-burst=0"], "--kube-api-burst: '0'", "a whole number from 1 to 1000000"),
    (["--kube-api-burst=1.5"], "--kube-api-burst: '1.5'", "a whole number from 1 to 1000000"),
    (["--bind-workers=999"], "--bind-workers: '999'", "a whole number from 1 to 256"),
    (["-v=11"], "-v: '11'", "a whole number from 0 to 10"),
    (["-v=-1"], "-v: '-1'", "a whole number from 0 to 10"),
    (["--v=info"], "--v: 'info'", "a whole number from 0 to 10"),
    (["--scheduler-name="], "--scheduler-name: must not be empty", "a name"),
    (["--default-queue= "], "--default-queue: must not be empty", "a name"),
    (["--node-selector=zone"], "--node-selector: 'zone' is not a selector", "label:value such as zone:a"),
    (["--node-selector=:a"], "--node-selector: ':a' is not a selector", "label:value such as zone:a"),
    (["--log-format=xml"], "--log-format", '"json"'),
    (["--node-worker-threads=many"], "--node-worker-threads: 'many'", "a whole number"),
    (["--resync-period=5"], "--resync-period: '5' is not a duration", "use 30s"),
    (["--v=1", "--v=2"], "--v specified multiple times", ""),
    (["--shedule-period=1s"], "Unknown option: --shedule-period=1s", "Did you mean --schedule-period?"),
    (["--no-leader-elect"], "Unknown option: --no-leader-elect", "Did you mean --leader-elect?"),
    (["--ignored.csi-storage"], "Unknown option", "--csi-storage"),
]


@pytest.mark.parametrize("arguments, what, accepted", REFUSED, ids=[" ".join(case[0]) for case in REFUSED])
def test_a_wrong_value_is_refused_with_the_flag_and_the_accepted_form(
    arguments: list[str], what: str, accepted: str
) -> None:
    text = refusal(*arguments)
    assert what in text
    assert accepted in text


TOGETHER = [
    (
        ["--leader-elect-lease-duration=500ms", "--leader-elect-renew-deadline=1ms", "--leader-elect-retry-period=1us"],
        "--leader-elect-lease-duration: 500ms must be at least 1s",
    ),
    (["--leader-elect-lease-duration=10s"], "--leader-elect-lease-duration: 10s must be longer than "),
    (["--leader-elect-renew-deadline=2400ms"], "--leader-elect-renew-deadline: 2.4s must be longer than 1.2 times "),
    (
        ["--leader-elect-resource-name=My_Lock"],
        "--leader-elect-resource-name: 'My_Lock' is not an object name; ",
    ),
    (["--leader-elect-resource-namespace=a/b"], "--leader-elect-resource-namespace: 'a/b' is not an object name; "),
    (["--lock-object-namespace=N"], "--lock-object-namespace: 'N' is not an object name; "),
    (["--leader-elect-resource-name=a..b"], "--leader-elect-resource-name: 'a..b' is not an object name; accepted: "),
    (["--tls-cert-file=/c"], "--tls-cert-file and --tls-private-key-file: set both or neither"),
    (["--tls-private-key-file=/k"], "--tls-cert-file and --tls-private-key-file: set both or neither"),
    (["--ca-cert-file=/c"], "--ca-cert-file: needs --tls-cert-file"),
    (["--fence", "--leader-elect=false"], "--fence: needs --leader-elect"),
    (["--strict-conf"], "--strict-conf: needs --scheduler-conf"),
    (
        [f"--provisioning-request-class={CHECK_CAPACITY}", "--pod-pending-reasons=volcano"],
        "--provisioning-request-class: needs --pod-pending-reasons=precise",
    ),
    (
        [
            *("--enable-metrics", "--enable-healthz", "--healthz-address=:8080"),
            *("--tls-cert-file=/c", "--tls-private-key-file=/k"),
        ],
        "--healthz-address: must differ from --listen-address",
    ),
]


@pytest.mark.parametrize("arguments, text", TOGETHER, ids=[" ".join(case[0]) for case in TOGETHER])
def test_flags_that_do_not_go_together_are_refused_by_name(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (problem,) = parse(*arguments).problems()
    assert problem.startswith(text)
    assert run(["run", *arguments]) == 2
    assert capsys.readouterr().err == f"error: {problem}\n"


_KUBECONFIG = """
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
"""


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--kubeconfig={0}/none"], "kubeconfig {0}/none: no such file"),
        (["--scheduler-conf={0}/none", "--strict-conf"], "--scheduler-conf {0}/none: scheduler-conf: cannot be read"),
        (["--record={0}/none/r"], "--record: {0}/none/r: No such file or directory"),
    ],
)
def test_invalid_input_at_startup_is_one_line_and_exit_status_2(
    arguments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kubeconfig").write_text(_KUBECONFIG, encoding="utf-8")
    given = [argument.format(tmp_path) for argument in arguments]
    if "--kubeconfig" not in arguments[0]:
        given.append(f"--kubeconfig={tmp_path}/kubeconfig")
    assert run(["run", "--log-format=json", *given]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("{")]
    assert line.startswith(f"error: {text.format(tmp_path)}")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_the_early_end_of_a_recording_is_logged(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(_KUBECONFIG, encoding="utf-8")
    out = StringIO()
    with Logs(0, "json", out) as logs:
        service = Service(parse("--record=/dev/full", f"--kubeconfig={tmp_path}/kubeconfig"), logs)
        assert service._recording is not None
        service._recording._thread.join(10)
    [line] = [json.loads(line) for line in out.getvalue().splitlines() if "recording ended" in line]
    assert (line["level"], line["msg"], line["file"]) == ("warning", "recording ended", "/dev/full")
    assert line["reason"] == "/dev/full: No space left on device"


# --- the Lease --------------------------------------------------------------------------------------------------------

DERIVED = [
    ("lease_name", ["--scheduler-name=volcano"], "volcano"),
    ("lease_name", ["--scheduler-name=b", "--scheduler-name=a"], "a-b"),
    ("lease_name", ["--leader-elect-resource-name=mine"], "mine"),
    ("lease_name", [], "capcard-sched"),
    ("lease_namespace", [], ""),
    ("lease_namespace", ["--leader-elect-resource-namespace=a"], "a"),
    ("lease_namespace", ["--leader-elect-resource-namespace=a", "--lock-object-namespace=b"], "b"),
    ("component", ["--scheduler-name=volcano"], "volcano"),
    ("component", ["--scheduler-name=a", "--scheduler-name=b"], "capcard-sched"),
]


@pytest.mark.parametrize("name, arguments, value", DERIVED)
def test_names_of_lease_and_events_follow_the_scheduler_without_a_flag(
    name: str, arguments: list[str], value: str
) -> None:
    assert getattr(parse(*arguments), name) == value


def test_scheduler_names_that_no_object_may_have_still_get_leases_of_their_own() -> None:
    names = ["My_Scheduler", "my-scheduler", "my_scheduler", "x" * 300, "x" * 301, "-", "a/b", "日本"]
    names += ["a..b", "a.-b", "b-.c"]
    leases = [parse(f"--scheduler-name={name}").lease_name for name in names]
    assert len(set(leases)) == len(names)
    for lease in leases:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", lease)
        assert len(lease) <= 253


# --- help, environment ------------------------------------------------------------------------------------------------


def test_the_help_is_grouped_and_ignored_flags_come_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--help"]) == 0
    titles = re.findall(r"╭─ (.*?) ─+╮", capsys.readouterr().out)
    assert titles == [
        "Cluster",
        "Scheduling",
        "Leader election",
        "Metrics and health",
        "Logs and diagnosis",
        "Accepted for compatibility, ignored",
    ]


def test_the_command_has_a_version_flag_too(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--version"])
    version = capsys.readouterr().out
    run(["run", "--version"])
    assert capsys.readouterr().out == version


def test_the_folder_of_the_debug_socket_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse().debug_socket_dir is None
    monkeypatch.setenv("DEBUG_SOCKET_DIR", "/run/debug")
    assert parse().debug_socket_dir == Path("/run/debug")
    assert parse("--debug-socket-dir=/elsewhere").debug_socket_dir == Path("/elsewhere")


@pytest.mark.parametrize("variable", sorted(set(ENVIRONMENT) - {"DEBUG_SOCKET_DIR"}))
def test_other_variables_of_volcano_change_nothing(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "3")
    assert parse() == Options()
    assert ENVIRONMENT[variable].startswith("ignored")


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["volcano"], 'unexpected argument "volcano": pass values as --flag=value'),
        (["--leader-elect", "false"], 'unexpected argument "false": pass values as --flag=value'),
        (
            ["--leader-elect=maybe"],
            'Invalid value for --leader-elect: unable to convert "maybe" into bool. Accepted: true or false.',
        ),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_status_2(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", *arguments]) == 2
    assert capsys.readouterr().err == f"error: {problem}\n"


def test_the_queue_allocation_gate_is_removed_whatever_the_flag() -> None:
    gates = parse("--feature-gates=SchedulingGatesQueueAdmission=false").ignored.given()["--feature-gates"]
    assert gates.startswith("SchedulingGatesQueueAdmission=false: the scheduler always removes")


def test_the_flags_of_newer_releases_are_accepted() -> None:
    options = parse(
        *("--scheduler-sharding-mode=none", "--scheduler-sharding-name=a", "--gate-removal-worker-num=10"),
        *("--resource-sync-timeout=60s", "--disable-default-scheduler-config"),
        "--feature-gates=SchedulingGatesQueueAdmission=true,UnschedulableJobCache=true",
        "--unschedulable-job-cache-max-skip-duration=6m",
    )
    assert options.problems() == []
    assert (options.resource_sync_timeout, options.disable_default_scheduler_config) == (60.0, True)
    assert sorted(options.ignored.given()) == [
        "--gate-removal-worker-num",
        "--scheduler-sharding-name",
        "--unschedulable-job-cache-max-skip-duration",
    ]


@pytest.mark.parametrize(
    "word, message",
    [
        ("--scheduler-sharding-mode=hard", "--scheduler-sharding-mode: hard is not supported"),
        ("--scheduler-sharding-mode=soft", "--scheduler-sharding-mode: soft is not supported"),
        ("--scheduler-sharding-mode=half", "'half' is not a mode; accepted: none"),
    ],
)
def test_a_value_whose_loss_changes_decisions_is_refused(word: str, message: str) -> None:
    (problem,) = parse(word).problems()
    assert message in problem


def test_the_process_ends_without_the_first_lists_in_time(tmp_path: Path) -> None:
    class Unavailable(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(503)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Unavailable) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        command: list[str | Path] = [Path(sys.executable).with_name("capcard-sched"), "run", "--leader-elect=false"]
        command += [f"--master=http://127.0.0.1:{server.server_port}", "--resource-sync-timeout=500ms"]
        environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"} | {
            "HOME": str(tmp_path)
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        server.shutdown()
    assert done.returncode == 2
    assert re.search(r"--resource-sync-timeout: no list of .*\bpods\b.* within 500ms", done.stderr)
