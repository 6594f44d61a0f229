"""Gang: metrics, and its note in `validate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from capcard_sched.cli.main import run
from capcard_sched.framework.api.plugin import Sample
from capcard_sched.plugins.gang import Gang
from capcard_sched.testing import Harness

_CONF = """
actions: "allocate"
tiers: [{plugins: [{name: gang}]}]
"""


def _one_short() -> Harness:
    """A gang of two that had its first session, on a node that takes one pod."""
    h = Harness(_CONF)
    h.node("n1", cpu="1")
    h.queue("q")
    h.group("g", min_member=2)
    h.pod("p0")
    h.pod("p1")
    h.step()
    return h


def test_a_session_that_skips_an_unchanged_refusal_counts_as_a_retry() -> None:
    h = _one_short()
    gang: Gang = h.plugin("gang")

    def retries() -> list[float]:
        return [sample.value for sample in gang.metrics() if sample.name == "job_retry_counts"]

    for _ in range(2):
        session = h.session()
        session._touched_jobs.clear()
        gang.close(session)
    assert retries() == [3]
    h.node("n2", cpu="1")
    h.settle()
    assert retries() == [3], "it is whole now"


def test_series_follow_the_job_and_go_with_it() -> None:
    h = _one_short()
    labels = {"job_id": "g", "job_ns": "default"}
    gang: Gang = h.plugin("gang")
    assert list(gang.metrics()) == [
        Sample("unschedule_task_count", labels, 1),
        Sample("job_retry_counts", labels, 1),
        Sample("unschedule_job_count", {}, 1),
    ]
    h.node("n2", cpu="1")
    h.step()
    assert list(gang.metrics()) == [
        Sample("unschedule_task_count", labels, 0),
        Sample("job_retry_counts", labels, 1),
        Sample("unschedule_job_count", {}, 0),
    ]
    h.delete_pod("p0")
    h.delete_pod("p1")
    h.delete_group("g")
    h.step()
    assert list(gang.metrics()) == [Sample("unschedule_job_count", {}, 0)]


@pytest.mark.parametrize(("switch", "noted"), [("false", True), ("true", False)])
def test_validate_states_how_unprotected_gangs_are_evicted_in_volcano(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], switch: str, noted: bool
) -> None:
    conf = tmp_path / "conf.yaml"
    conf.write_text(f"actions: allocate\ntiers: [{{plugins: [{{name: gang, enablePreemptable: {switch}}}]}}]\n")
    assert run(["validate", "--scheduler-conf", str(conf)]) == 0
    assert ("Volcano evicts only the pods that it needs" in " ".join(capsys.readouterr().out.split())) == noted
