"""The order of admission, read from objects: what a scheduler keeps in memory about jobs without progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.actions.enqueue import Enqueue
from capcard_sched.controllers.objects import JOB, POD, POD_GROUP, annotations_of, controller_of, meta, spec, status
from capcard_sched.framework.backlog.stalled_jobs import AdmissionTimes
from capcard_sched.framework.session.action import SessionProgress
from capcard_sched.framework.session.carry_over import CarryOver
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.pod_facts import group_of
from capcard_sched.model.status import PodGroupPhase
from capcard_sched.model.timestamps import parse_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.controllers.objects import JsonObject


def progress_of(objects: Iterable[JsonObject], now: float) -> SessionProgress:
    """The progress of sessions, as far as PodGroups and pods have it. `now` in Unix seconds.

    An admitted job without a pod on a node waits since its last refusal became another one, or its pods were created.
    Pods of a Job exist only after its admission: one whose PodGroup is Pending was requeued.
    """
    pods: dict[str, list[JsonObject]] = {}
    groups = []
    for obj in objects:
        if kind_of(obj) == POD:
            name = group_of(annotations_of(obj))
            pods.setdefault(f"{meta(obj).get('namespace') or 'default'}/{name}", []).append(obj)
        elif kind_of(obj) == POD_GROUP:
            groups.append(obj)
    stuck: dict[tuple[str, str], float] = {}
    requeued: dict[str, float] = {}
    for group in groups:
        key = f"{meta(group).get('namespace') or 'default'}/{meta(group)['name']}"
        of = pods.get(key, [])
        phase, owner = status(group).get("phase"), controller_of(group)
        if any(spec(pod).get("nodeName") for pod in of):
            continue
        if phase == PodGroupPhase.INQUEUE:
            stuck[str(spec(group).get("queue") or "default"), key] = _since(group, of, now)
        elif of and phase == PodGroupPhase.PENDING and owner is not None and owner["kind"] == JOB:
            requeued[key] = _since(group, of, now)
    ordered = dict(sorted(stuck.items(), key=lambda item: (item[1], item[0])))
    return SessionProgress(CarryOver(), {Enqueue.name: AdmissionTimes(ordered, requeued)})


def _since(group: JsonObject, pods: list[JsonObject], now: float) -> float:
    times = [one.get("lastTransitionTime") for one in status(group).get("conditions") or ()]
    times = times or [meta(pod).get("creationTimestamp") for pod in pods]
    return min(max((parse_timestamp(time) for time in times if time), default=now), now)
