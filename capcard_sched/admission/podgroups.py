"""Admission of PodGroups: the default queue of the namespace, and the queue and annotations of a new group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.admission.review import AdmissionResult, JsonPatch
from capcard_sched.admission.view import DEFAULT_QUEUE, ROOT_QUEUE
from capcard_sched.validation.checks import Finding
from capcard_sched.validation.object_checks import check_object

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.admission.view import ClusterView
    from capcard_sched.validation.inventory import Json


def default_pod_group(obj: Json, namespace: str, view: ClusterView) -> AdmissionResult:
    """The queue that the namespace names, for a group in the default queue."""
    spec = obj.get("spec")
    queue = view.default_queue(namespace)
    current = spec.get("queue") if isinstance(spec, dict) else None
    if not queue or (current and current != DEFAULT_QUEUE):
        return AdmissionResult()
    patch = JsonPatch(obj)
    patch.set(queue, "spec", "queue")
    return AdmissionResult(patch=tuple(patch.operations))


def check_new_pod_group(obj: Json, view: ClusterView) -> AdmissionResult:
    """What is wrong with a new PodGroup, and warnings about its cards."""
    spec = obj.get("spec")
    queue = (spec.get("queue") if isinstance(spec, dict) else None) or DEFAULT_QUEUE
    return AdmissionResult((*_check_queue(str(queue), view), *check_object(obj, view.inventory)))


def _check_queue(name: str, view: ClusterView) -> Iterator[Finding]:
    queue = view.queue(name)
    if queue is None:
        known = ", ".join(sorted(entry.name for entry in view.queues() if entry.name != ROOT_QUEUE)[:10])
        yield Finding("error", "spec.queue", f"unable to find queue: {name}", known or "an existing queue")
    elif queue.state not in {"", "Open"}:
        message = f"can only submit PodGroup to queue with state `Open`, queue `{name}` status is `{queue.state}`"
        yield Finding("error", "spec.queue", message, "an open queue")
