"""Pods that name PodGroups of `scheduling.k8s.io` that never come, or that are of another namespace."""

from __future__ import annotations

import msgspec
import pytest

from capcard_sched.model.deltas import ObjectChanged, ObjectGone
from capcard_sched.model.kube_groups import KubePodGroup, translated
from capcard_sched.testing import Harness

_CONF = "actions: 'enqueue, allocate'\ntiers:\n- plugins: [{name: gang}, {name: predicates}]\n"


def _group(h: Harness, namespace: str, name: str, count: int, uid: str = "", **metadata: object) -> None:
    document = {
        "metadata": {"name": name, "namespace": namespace, "uid": uid or f"{namespace}-{name}", **metadata},
        "spec": {"schedulingPolicy": {"gang": {"minCount": count}}},
    }
    h.apply(ObjectChanged(translated(msgspec.convert(document, KubePodGroup))))


def _pod(h: Harness, namespace: str, name: str, group: str, scheduler: str = "capcard-sched", queue: str = "") -> None:
    notes = {"scheduling.volcano.sh/queue-name": queue} if queue else {}
    named = {"podGroupName": group}
    h.pod(name, group=None, namespace=namespace, scheduler=scheduler, annotations=notes, schedulingGroup=named)


def _sizes(h: Harness) -> dict[str, int]:
    return {name: len(kept) for name, kept in vars(h.state.kube_groups).items() if isinstance(kept, dict)}


@pytest.mark.parametrize("scheduler", ["capcard-sched", "other"])
def test_pods_of_groups_that_never_come_leave_nothing(scheduler: str) -> None:
    h = Harness(_CONF)
    h.queue("q")
    h.node("n1", cpu="4")
    before = _sizes(h)
    for number in range(50):
        _pod(h, "team", f"p{number}", f"g{number}", scheduler, queue="q")
        h.step()
        h.apply(ObjectGone("Pod", "team", f"p{number}"))
        h.step()
    assert _sizes(h) == before


def test_a_group_is_reported_while_it_has_pods_of_other_schedulers() -> None:
    h = Harness(_CONF)
    _group(h, "team", "g", 1)
    for name in ("a", "b"):
        _pod(h, "team", name, "g", "other")
    h.step()
    (text,) = h.state.kube_groups.other_schedulers.values()
    assert text.startswith("pod a is one of scheduler other")
    h.apply(ObjectGone("Pod", "team", "a"))
    h.step()
    assert [*h.state.kube_groups.other_schedulers.values()] == [text]
    h.apply(ObjectGone("Pod", "team", "b"))
    h.step()
    assert not h.state.kube_groups.other_schedulers


def test_a_pod_is_no_member_of_a_group_of_another_namespace() -> None:
    h = Harness(_CONF)
    h.queue("default")
    h.node("n1", cpu="4")
    _group(h, "peer", "g", 2)
    _pod(h, "peer", "first", "g")
    _pod(h, "team", "forged", "g")
    h.step()
    assert not h.binds
    _group(h, "team", "g", 2, uid="peer-g", ownerReferences=[_owner("peer-g")])
    h.step()
    assert not h.binds, "a group of one's own with the uid and the owner of another one"
    _pod(h, "peer", "second", "g")
    h.settle()
    assert {*h.binds} == {"first", "second"}


def _owner(uid: str) -> dict[str, object]:
    return {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": uid, "controller": True}
