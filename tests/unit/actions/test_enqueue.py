"""Admitted jobs without progress return their reservation after `inqueueTimeoutSeconds`."""

from __future__ import annotations

from capcard_sched.testing import Harness

CONF = """
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: gang
  - name: capacity-card
configurations:
- name: enqueue
  arguments: {{inqueueTimeoutSeconds: {seconds}}}
"""
QUEUE_CLOSED_EVENT = (
    "InqueueTimeout",
    "No pod was scheduled within 60 s of admission to Queue <q>; moved back to Pending, other jobs are tried",
)


def blocked(seconds: int) -> Harness:
    """`big` is admitted, fits no node, and holds the whole quota; `small` would fit."""
    h = Harness(CONF.format(seconds=seconds))
    h.gpu_node("n1", count=4)
    h.queue("q", cards={"NVIDIA-H200": 8})
    h.group("big", phase="Pending")
    h.pod("big-w-0", group="big", card="NVIDIA-H200", cards=8)
    h.group("small", phase="Pending")
    h.pod("small-w-0", group="small", card="NVIDIA-H200", cards=4)
    h.settle_for(3)
    assert h.job("big").phase == "Inqueue"
    assert h.job("small").phase == "Pending"
    return h


def test_by_default_an_admitted_job_keeps_its_reservation() -> None:
    h = blocked(0)
    h.step(h.now + 86400)
    assert h.step(h.now + 1).idle
    assert h.binds == {}


def test_a_job_without_progress_backs_off_and_the_next_one_is_admitted() -> None:
    h = blocked(60)
    start = h.now
    h.step(start + 58)
    assert h.job("big").phase == "Inqueue"
    h.step(start + 62)
    assert h.job("big").phase == "Pending"
    h.settle_for(3)
    assert h.binds == {"small-w-0": "n1"}
    assert QUEUE_CLOSED_EVENT in h.event_messages("PodGroup", "big")
    assert QUEUE_CLOSED_EVENT in h.event_messages("Pod", "big-w-0")


def test_a_requeued_job_goes_behind_the_jobs_that_were_not_tried_since() -> None:
    h = blocked(60)
    for name in ("third", "fourth"):
        h.group(name, phase="Pending")
        h.pod(f"{name}-w-0", group=name, card="NVIDIA-H200", cards=8)
    h.delete_pod("small-w-0")
    h.delete_group("small")
    order = []
    for _ in range(4):
        h.step(h.now + 62)
        h.settle_for(3)
        order += [name for name in ("big", "third", "fourth") if h.job(name).phase == "Inqueue"]
    assert order == ["third", "fourth", "big", "third"]


def test_a_session_opens_when_the_time_of_a_stuck_job_is_over_and_not_before() -> None:
    h = blocked(60)
    wakeup = h.step().next_wakeup
    assert wakeup is not None
    assert h.step(wakeup - 1).idle
    assert not h.step(wakeup).idle
    assert h.job("big").phase == "Pending"
