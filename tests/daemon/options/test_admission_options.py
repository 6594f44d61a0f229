"""The flags of `capcard-sched admission`: those of Volcano's webhook manager."""

from __future__ import annotations

import pytest
from cyclopts import App

from capcard_sched.admission.queues import QueueRules
from capcard_sched.cli.admission import admission
from capcard_sched.daemon.admission.options import AdmissionOptions
from capcard_sched.daemon.compat_flags import QUEUE_GATE


def parse(*words: str) -> AdmissionOptions:
    app = App(result_action="return_value")
    app.default(admission)
    _, bound, _ = app.parse_args(list(words), exit_on_error=False, print_error=False)
    found: AdmissionOptions = bound.arguments.get("options", AdmissionOptions())
    return found


#: Of Volcano's chart 1.16.
CHART = (
    "--enabled-admission=/jobs/mutate,/jobs/validate,/queues/mutate,/queues/validate,/hypernodes/validate,/cronjobs/validate",
    "--tls-cert-file=/admission.local.config/certificates/tls.crt",
    "--tls-private-key-file=/admission.local.config/certificates/tls.key",
    "--ca-cert-file=/admission.local.config/certificates/ca.crt",
    "--admission-conf=/admission.local.config/configmap/volcano-admission.conf",
    "--webhook-namespace=volcano-system",
    "--webhook-service-name=volcano-admission-service",
    "--enable-healthz=true",
    "--logtostderr",
    "--port=8443",
    "-v=4",
    "2>&1",
)


def test_the_arguments_of_volcanos_chart_are_accepted_as_they_are() -> None:
    options = parse(*CHART)
    assert options.problems() == []
    assert options.paths == ("/jobs/mutate", "/jobs/validate", "/queues/mutate", "/queues/validate")
    assert sorted(options.given()) == [
        "--ca-cert-file",
        "--enabled-admission=/cronjobs/validate",
        "--enabled-admission=/hypernodes/validate",
    ]


def test_further_flags_have_their_effect() -> None:
    options = parse(
        *("--max-queue-depth=2", "--enable-root-queue-protection=false", "--enable-queue-allocated-pods-check"),
        *("--graceful-shutdown-time=30s", "--kube-api-qps=50", "--kube-api-burst=100", "--enable-metrics"),
    )
    assert options.problems() == []
    assert options.queue_rules == QueueRules(2, protects_root=False, keeps_used_queues=True)
    assert (options.graceful_shutdown_time, options.kube_api_qps, options.kube_api_burst) == (30.0, 50.0, 100)
    assert options.given() == {}


def test_a_flag_without_effect_has_its_reason() -> None:
    options = parse("--webhook-url=https://a", "--enable-healthz=false", "--feature-gates=UnschedulableJobCache=false")
    assert options.problems() == []
    assert sorted(options.given()) == [
        "--enable-healthz",
        "--feature-gates",
        "--webhook-url",
    ]


@pytest.mark.parametrize("value, is_on", [("true", True), ("false", False), ("1", True), ("", False)])
def test_a_feature_gate_adds_the_queue_allocation_gate(value: str, is_on: bool) -> None:
    options = parse(*([f"--feature-gates={QUEUE_GATE}={value}"] if value else []))
    assert options.ignored.is_on(QUEUE_GATE) is is_on
    assert options.given() == {}


@pytest.mark.parametrize(
    "text, host, is_partly_ignored",
    [
        ("", "", False),
        ("127.0.0.1", "127.0.0.1", False),
        ("127.0.0.1:8443", "127.0.0.1", False),
        ("[::1]", "::1", False),
        ("::1", "::1", False),
        (":8080", "", True),
        ("10.0.0.1:80", "10.0.0.1", True),
        ("[::1]:80", "::1", True),
    ],
)
def test_the_listen_address_is_a_host(text: str, host: str, is_partly_ignored: bool) -> None:
    options = parse(f"--listen-address={text}")
    assert (options.server_address.host, options.server_address.port) == (host, 8443)
    assert bool(options.given()) is is_partly_ignored


def test_gates_that_are_always_on_need_no_value() -> None:
    options = parse("--feature-gates=QueueScopedOvercommit=true,NamespaceQueue=T")
    assert (options.problems(), options.given()) == ([], {})
