"""The recorded objects during a replay, and the deltas that return a core to the recorded history.

Each step of a replay starts from the recorded history. After a step with other decisions, later recorded deltas
contradict the core's state. So the core receives deltas by which its own decisions failed and the recorded ones
succeeded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from capcard_sched.model.annotations import CARD_ASSIGNED
from capcard_sched.model.deltas import BindFailed, Delta, EvictFailed, ObjectChanged, ObjectGone, Takeover
from capcard_sched.model.intents import AnnotatePodGroup, Bind, EmitEvent, Evict, Intent, UpdatePodGroup
from capcard_sched.model.objects import PodGroupObject, PodObject
from capcard_sched.model.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from capcard_sched.framework.core import Core
    from capcard_sched.state.cluster import ClusterState

_NOT_RECORDED: str = "replay: not in the recording"

_Decision = TypeVar("_Decision", Bind, Evict)


class ReplayState:
    """Pods and PodGroups of the recording up to the current step."""

    def __init__(self) -> None:
        self._pods: dict[str, PodObject] = {}
        self._uids: dict[tuple[str, str], str] = {}
        self._groups: dict[tuple[str, str], PodGroupObject] = {}
        #: Pods restored as bound or terminating before the recording's own deltas.
        self._ahead: set[str] = set()

    def phase(self, namespace: str, name: str) -> str:
        """The recorded phase of a PodGroup; "" without the PodGroup."""
        group = self._groups.get((namespace, name))
        return "" if group is None else group.status.phase or "Pending"

    def deltas(self, deltas: Sequence[Delta]) -> Iterator[Delta]:
        """The recorded deltas, with additional ones for pods that were restored before."""
        for delta in deltas:
            match delta:
                case ObjectChanged(PodObject() as pod):
                    self._see(pod)
                case ObjectGone("Pod", namespace, name, uid):
                    known = uid or self._uids.pop((namespace, name), "")
                    self._pods.pop(known, None)
                    self._ahead.discard(known)
                case ObjectChanged(PodGroupObject() as group):
                    self._groups[group.metadata.namespace or "default", group.metadata.name] = group
                case ObjectGone("PodGroup", namespace, name):
                    self._groups.pop((namespace, name), None)
                case BindFailed(_, _, uid) | EvictFailed(_, _, uid):
                    yield from self._undo(uid)
                case Takeover():
                    for uid in sorted(self._ahead):
                        yield from self._undo(uid)
                case _:
                    pass
            yield delta

    def _see(self, pod: PodObject) -> None:
        meta = pod.metadata
        self._pods[meta.uid] = pod
        self._uids[meta.namespace or "default", meta.name] = meta.uid
        if pod.spec.node_name or meta.deletion_timestamp:
            self._ahead.discard(meta.uid)

    def _undo(self, uid: str) -> Iterator[Delta]:
        """Deltas that undo the restoration of a pod. The pod is replaced: an existing one cannot lose its node."""
        pod = self._pods.get(uid)
        if uid in self._ahead and pod is not None:
            self._ahead.discard(uid)
            yield ObjectGone("Pod", pod.metadata.namespace or "default", pod.metadata.name, uid)
            yield ObjectChanged(pod)

    def record_intents(self, intents: Sequence[Intent]) -> None:
        """Apply the statuses and annotations of the recorded intents to the history."""
        for intent in intents:
            if isinstance(intent, UpdatePodGroup):
                key = intent.namespace, intent.name
                group = self._groups.get(key)
                if group is not None:
                    status = replace(
                        group.status,
                        phase=intent.phase,
                        conditions=intent.conditions,
                        running=intent.running,
                        succeeded=intent.succeeded,
                        failed=intent.failed,
                    )
                    self._groups[key] = replace(group, status=status)
            elif isinstance(intent, AnnotatePodGroup):
                key = intent.namespace, intent.name
                group = self._groups.get(key)
                if group is not None:
                    notes = {**(group.metadata.annotations or {}), **intent.annotations}
                    kept = {name: value for name, value in notes.items() if value is not None}
                    self._groups[key] = replace(group, metadata=replace(group.metadata, annotations=kept))

    def restore(self, core: Core, recorded: Sequence[Intent], replayed: Sequence[Intent], now: float) -> None:
        """Return the state to that after the recorded decisions. `now`: Unix seconds of the step."""
        for delta in [
            *self._bindings(_by_uid(recorded, Bind), _by_uid(replayed, Bind)),
            *self._evictions(_by_uid(recorded, Evict), _by_uid(replayed, Evict), now),
            *self._phases(core.snapshot().state),
        ]:
            core.apply(delta)

    def _bindings(self, recorded: Mapping[str, Bind], replayed: Mapping[str, Bind]) -> Iterator[Delta]:
        for uid, bind in replayed.items():
            if recorded.get(uid) != bind:
                yield BindFailed(bind.namespace, bind.name, uid, _NOT_RECORDED)
        for uid, bind in recorded.items():
            pod = self._pods.get(uid)
            if pod is not None and replayed.get(uid) != bind:
                self._ahead.add(uid)
                meta = replace(pod.metadata, annotations={**(pod.metadata.annotations or {}), **bind.annotations})
                yield ObjectChanged(replace(pod, metadata=meta, spec=replace(pod.spec, node_name=bind.node)))

    def _evictions(self, recorded: Mapping[str, Evict], replayed: Mapping[str, Evict], now: float) -> Iterator[Delta]:
        for uid, evict in replayed.items():
            if uid not in recorded:
                yield EvictFailed(evict.namespace, evict.name, uid, _NOT_RECORDED)
        for uid in recorded:
            pod = self._pods.get(uid)
            if pod is not None and uid not in replayed:
                self._ahead.add(uid)
                yield ObjectChanged(
                    replace(pod, metadata=replace(pod.metadata, deletion_timestamp=format_timestamp(now)))
                )

    def _phases(self, state: ClusterState) -> Iterator[Delta]:
        """Of all PodGroups: a status that only the core has may come of an earlier step's decisions."""
        for key, group in sorted(self._groups.items()):
            job = state.jobs.get("/".join(key))
            if job is not None and job.phase.value != self.phase(*key):
                yield ObjectChanged(group)


def _by_uid(intents: Sequence[Intent], of: type[_Decision]) -> Mapping[str, _Decision]:
    return {intent.uid: intent for intent in intents if isinstance(intent, of)}


def bindings(intents: Sequence[Intent]) -> dict[str, tuple[str, str]]:
    """Uid of each bound pod to (object, node and card)."""
    return {
        intent.uid: (f"Pod {intent.namespace}/{intent.name}", _place(intent))
        for intent in intents
        if isinstance(intent, Bind)
    }


def _place(bind: Bind) -> str:
    card = bind.annotations.get(CARD_ASSIGNED)
    return f"{bind.node} ({card})" if card else bind.node


def evictions(intents: Sequence[Intent]) -> dict[str, tuple[str, str]]:
    """Uid of each evicted pod to (object, reason)."""
    return {
        intent.uid: (f"Pod {intent.namespace}/{intent.name}", intent.reason)
        for intent in intents
        if isinstance(intent, Evict)
    }


def surplus(ones: Sequence[Intent], others: Sequence[Intent]) -> dict[str, list[str]]:
    """Intents that occur more often in `ones` than in `others`: object to their texts."""
    left: dict[bytes, int] = {}
    for intent in others:
        encoded = msgspec.json.encode(intent)
        left[encoded] = left.get(encoded, 0) + 1
    found: dict[str, list[str]] = {}
    for intent in ones:
        encoded = msgspec.json.encode(intent)
        if left.get(encoded, 0):
            left[encoded] -= 1
        else:
            found.setdefault(_subject(intent), []).append(encoded.decode())
    return found


def _subject(intent: Intent) -> str:
    if isinstance(intent, EmitEvent):
        ref = intent.object
        return f"{ref.kind} {ref.namespace}/{ref.name}" if ref.namespace else f"{ref.kind} {ref.name}"
    kinds = {
        "UpdatePodGroup": "PodGroup", "AnnotatePodGroup": "PodGroup",
        "WriteConfigMap": "ConfigMap", "UpdatePodCondition": "Pod", "RemoveGate": "Pod", "Bind": "Pod",
        "Evict": "Pod", "AnnotatePod": "Pod", "RequestCapacity": "ProvisioningRequest",
        "WithdrawRequest": "ProvisioningRequest",
    }  # fmt: skip
    kind = kinds.get(type(intent).__name__, "Queue")
    namespace = getattr(intent, "namespace", "")
    return f"{kind} {namespace}/{intent.name}" if namespace else f"{kind} {intent.name}"
