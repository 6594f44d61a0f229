"""The recorded objects during a replay, and how a core is put back to what really happened.

A replay asks of every step: what would have been decided here, given all that had happened? When the answer differs
from the recorded decision, the facts that follow in the recording contradict it: pods arrive elsewhere than they were
just sent. So after such a step the core is told, in facts it understands, that its own decisions failed and that the
recorded ones came about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from capcard_sched.model.deltas import (
    BindFailed,
    Delta,
    EvictFailed,
    PodChanged,
    PodGone,
    PodGroupChanged,
    PodGroupGone,
    Takeover,
)
from capcard_sched.model.intents import AnnotatePodGroup, Bind, Evict, Intent, UpdatePodGroup
from capcard_sched.model.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from capcard_sched.model.objects import PodGroupObject, PodObject
    from capcard_sched.state.cluster import ClusterState

_NOT_SO: str = "replay: this is not what happened"


class ReplayState:
    """Pods and PodGroups as the recording has them up to now."""

    def __init__(self) -> None:
        self._pods: dict[str, PodObject] = {}
        self._uids: dict[tuple[str, str], str] = {}
        self._groups: dict[tuple[str, str], PodGroupObject] = {}
        #: Pods that the core was told are bound or terminating before the recording's own facts say so.
        self._ahead: set[str] = set()

    def phase(self, namespace: str, name: str) -> str:
        """The recorded phase of a PodGroup; "" when there is no such group."""
        group = self._groups.get((namespace, name))
        return "" if group is None else group.status.phase or "Pending"

    def facts(self, deltas: Sequence[Delta]) -> Iterator[Delta]:
        """The recorded facts, and beside them what makes them true of a core that was put back before."""
        for delta in deltas:
            match delta:
                case PodChanged(pod):
                    self._see(pod)
                case PodGone(namespace, name, uid):
                    known = uid or self._uids.pop((namespace, name), "")
                    self._pods.pop(known, None)
                    self._ahead.discard(known)
                case PodGroupChanged(group):
                    self._groups[group.metadata.namespace or "default", group.metadata.name] = group
                case PodGroupGone(namespace, name):
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
        """The pod as it was before it was put ahead; only a new pod of the name may lose its node."""
        pod = self._pods.get(uid)
        if uid in self._ahead and pod is not None:
            self._ahead.discard(uid)
            yield PodGone(pod.metadata.namespace or "default", pod.metadata.name, uid)
            yield PodChanged(pod)

    # --- after a step -----------------------------------------------------------------------------------------------

    def decided(self, intents: Sequence[Intent]) -> None:
        """The recorded decisions of a step: what they wrote is part of the history."""
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

    def put_back(self, state: ClusterState, then: Sequence[Intent], here: Sequence[Intent], now: float) -> None:
        """Make the core's state what it was after the recorded decisions. `now`: Unix seconds of the step."""
        for fact in [*self._bindings(then, here), *self._evictions(then, here, now), *self._phases(state, then, here)]:
            state.apply(fact)

    def _bindings(self, then: Sequence[Intent], here: Sequence[Intent]) -> Iterator[Delta]:
        recorded, decided = _binds(then), _binds(here)
        for uid, bind in decided.items():
            if recorded.get(uid) != bind:
                yield BindFailed(bind.namespace, bind.name, uid, _NOT_SO)
        for uid, bind in recorded.items():
            pod = self._pods.get(uid)
            if pod is not None and decided.get(uid) != bind:
                self._ahead.add(uid)
                meta = replace(pod.metadata, annotations={**(pod.metadata.annotations or {}), **bind.annotations})
                yield PodChanged(replace(pod, metadata=meta, spec=replace(pod.spec, node_name=bind.node)))

    def _evictions(self, then: Sequence[Intent], here: Sequence[Intent], now: float) -> Iterator[Delta]:
        recorded, decided = _evicts(then), _evicts(here)
        for uid, evict in decided.items():
            if uid not in recorded:
                yield EvictFailed(evict.namespace, evict.name, uid, _NOT_SO)
        for uid in recorded:
            pod = self._pods.get(uid)
            if pod is not None and uid not in decided:
                self._ahead.add(uid)
                yield PodChanged(replace(pod, metadata=replace(pod.metadata, deletion_timestamp=format_timestamp(now))))

    def _phases(self, state: ClusterState, then: Sequence[Intent], here: Sequence[Intent]) -> Iterator[Delta]:
        keys = {(intent.namespace, intent.name) for intent in (*then, *here) if isinstance(intent, UpdatePodGroup)}
        for key in sorted(keys):
            job, group = state.jobs.get("/".join(key)), self._groups.get(key)
            if job is not None and group is not None and job.phase.value != self.phase(*key):
                yield PodGroupChanged(group)


def _binds(intents: Sequence[Intent]) -> Mapping[str, Bind]:
    return {intent.uid: intent for intent in intents if isinstance(intent, Bind)}


def _evicts(intents: Sequence[Intent]) -> Mapping[str, Evict]:
    return {intent.uid: intent for intent in intents if isinstance(intent, Evict)}
