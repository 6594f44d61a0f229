"""The field `involvedObject` of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.kinds import KIND_BY_NAME
from capcard_sched.model.kube_groups import KUBE_API, kube_name

if TYPE_CHECKING:
    from capcard_sched.model.intents import ObjectRef


def involved_object(ref: ObjectRef, uid: str) -> dict[str, str]:
    """The object of an event. `kubectl describe` finds the event by `uid`."""
    kind, _, version = ref.kind.partition(".")  # `Job.batch/v1`: the namesake of a kind of the table
    name = ref.name
    if kind == "PodGroup" and kube_name(name):
        version, name = KUBE_API, kube_name(name)
    involved = {"apiVersion": version or KIND_BY_NAME[kind].api_version, "kind": kind, "name": name, "uid": uid}
    return {**involved, "namespace": ref.namespace} if ref.namespace else involved
