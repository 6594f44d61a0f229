"""The ReplicaSet controller: keeps `spec.replicas` live pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.jobs.pods import pod_from
from capcard_sched.controllers.objects import (
    ENDED_PHASES,
    POD,
    REPLICA_SET,
    JsonObject,
    controller_of,
    key_of,
    labels_of,
    meta,
    owner_reference,
    spec,
    status,
)
from capcard_sched.simulation.workloads.templates import spelled
from capcard_sched.simulation.workloads.workqueue import Worklist

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.simulation.store import Change, Store

#: Step between the numbers of consecutive names, so that suffixes look random as in Kubernetes.
_STRIDE, _SUFFIX_LETTERS = 9_876_553, 5


def is_live(pod: JsonObject) -> bool:
    """Whether a pod counts as a replica: neither ended nor terminating."""
    return status(pod).get("phase") not in ENDED_PHASES and not meta(pod).get("deletionTimestamp")


def is_ready(pod: JsonObject) -> bool:
    """Whether the condition `Ready` is True."""
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status(pod).get("conditions") or ()
    )


class ReplicaSetController:
    """Keeps each ReplicaSet's pods at `spec.replicas`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sets = Worklist(store, REPLICA_SET, POD)
        self._made: dict[str, int] = {}
        #: Owner uid to the keys of its live pods; pods that ended may be many more.
        self._live: dict[str, dict[tuple[str, str], None]] = {}

    def observe(self, change: Change) -> None:
        """Queue sets that changed, or whose pods did."""
        self._sets.observe(change)
        if change.kind != POD:
            return
        for owner in _owners(change.old) - _owners(change.new):
            self._live[owner].pop(change.key)
            if not self._live[owner]:
                del self._live[owner]
        for owner in _owners(change.new):
            self._live.setdefault(owner, {})[change.key] = None

    def reconcile(self) -> bool:
        """Reconcile the queued sets; whether there were any."""
        worked = bool(self._sets)
        for found in self._sets.drain():
            if not meta(found).get("deletionTimestamp"):
                self._keep(found)
        return worked

    def _keep(self, found: JsonObject) -> None:
        uid, namespace, name = meta(found)["uid"], meta(found)["namespace"], meta(found)["name"]
        if uid not in self._made:
            self._made[uid] = 0
            self._adopt(found)
        live = self._live_pods(uid)
        wanted = int(spec(found).get("replicas", 1))
        for _ in range(wanted - len(live)):
            self._store.create(POD, self._pod(found))
        if len(live) > wanted:
            for pod in sorted(live, key=_departure)[: len(live) - wanted]:
                self._store.delete(POD, *key_of(pod))
        live = self._live_pods(uid)
        ready = sum(map(is_ready, live))
        counts: JsonObject = {"replicas": len(live), "readyReplicas": ready or None, "availableReplicas": ready or None}
        self._store.patch(REPLICA_SET, namespace, name, {"status": counts})

    def _live_pods(self, uid: str) -> list[JsonObject]:
        found = (self._store.get(POD, *key) for key in self._live.get(uid, ()))
        return [pod for pod in found if pod is not None]

    def _pod(self, found: JsonObject) -> JsonObject:
        uid, namespace, name = meta(found)["uid"], meta(found)["namespace"], meta(found)["name"]
        while True:
            self._made[uid] += 1
            suffix = spelled(self._made[uid] * _STRIDE, _SUFFIX_LETTERS)
            if not self._store.existed(POD, namespace, f"{name}-{suffix}"):
                return pod_from(spec(found)["template"], name=f"{name}-{suffix}", owner=found)

    def _adopt(self, found: JsonObject) -> None:
        """Adopt initial pods that match the selector and have no controller."""
        wanted = (spec(found).get("selector") or {}).get("matchLabels")
        if not wanted:
            return
        for pod in list(self._store.list(POD)):
            if meta(pod)["namespace"] != meta(found)["namespace"] or controller_of(pod) is not None:
                continue
            if is_live(pod) and all(labels_of(pod).get(key) == value for key, value in wanted.items()):
                patch = {"ownerReferences": [owner_reference(found)]}
                self._store.patch(POD, *key_of(pod), {"metadata": patch})


def _owners(pod: JsonObject | None) -> set[str]:
    """The uids of the owners of which a pod is a replica."""
    if pod is None or not is_live(pod):
        return set()
    return {owner["uid"] for owner in meta(pod).get("ownerReferences") or () if owner.get("uid")}


def _departure(pod: JsonObject) -> tuple[int, int, int, str, str]:
    """Deletion order when a set shrinks: pods without a node, not running, not ready; then the youngest."""
    created = meta(pod)["creationTimestamp"]
    return (
        1 if spec(pod).get("nodeName") else 0,
        {"Pending": 0, "Unknown": 1}.get(status(pod).get("phase", "Pending"), 2),
        1 if is_ready(pod) else 0,
        _backwards(created),
        _backwards(meta(pod)["uid"]),
    )


def _backwards(text: str) -> str:
    """A key that sorts texts of equal length in descending order."""
    return "".join(chr(0x10FFFF - ord(letter)) for letter in text)


def available(pods: Iterable[JsonObject]) -> int:
    """The number of live pods that are ready."""
    return sum(1 for pod in pods if is_live(pod) and is_ready(pod))
