"""The ReplicaSet controller keeps `spec.replicas` live pods; the StatefulSet controller numbered ones, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.jobs.job_spec import pod_from
from capcard_sched.controllers.objects import (
    CLAIM,
    ENDED_PHASES,
    POD,
    REPLICA_SET,
    STATEFUL_SET,
    JsonObject,
    controller_key,
    controller_of,
    deletion_cost,
    identity,
    key_of,
    labels_of,
    meta,
    owner_reference,
    spec,
    status,
)
from capcard_sched.model.numbers import whole_number
from capcard_sched.simulation.workloads.volumes import claim_from
from capcard_sched.simulation.workloads.workqueue import WorkloadController, digest, spelled

if TYPE_CHECKING:
    from capcard_sched.model.ownership import Owner
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


class ReplicaSetController(WorkloadController):
    """Keeps each ReplicaSet's pods at `spec.replicas`."""

    kind, owned = REPLICA_SET, POD

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._made: dict[str, int] = {}
        #: Owner to the keys of its live pods; pods that ended may be many more.
        self._live: dict[Owner, dict[tuple[str, str], None]] = {}

    def observe(self, change: Change) -> None:
        """Queue sets that changed, or whose pods did."""
        super().observe(change)
        if change.kind != POD:
            return
        old, new = _owner(change.old), _owner(change.new)
        if old is not None and old != new:
            self._live[old].pop(change.key)
            if not self._live[old]:
                del self._live[old]
        if new is not None:
            self._live.setdefault(new, {})[change.key] = None

    def _keep(self, found: JsonObject) -> None:
        if meta(found).get("deletionTimestamp"):
            return
        uid, namespace, name = meta(found)["uid"], meta(found)["namespace"], meta(found)["name"]
        if uid not in self._made:
            self._made[uid] = 0
            self._adopt(found)
        live = self._live_pods(found)
        wanted = int(spec(found).get("replicas", 1))
        for _ in range(wanted - len(live)):
            self._store.create(POD, self._pod(found))
        if len(live) > wanted:
            for pod in sorted(live, key=_departure)[: len(live) - wanted]:
                self._store.delete(POD, *key_of(pod))
        live = self._live_pods(found)
        ready = sum(map(is_ready, live))
        counts: JsonObject = {"replicas": len(live), "readyReplicas": ready or None, "availableReplicas": ready or None}
        self._store.patch(REPLICA_SET, namespace, name, {"status": counts})

    def _live_pods(self, found: JsonObject) -> list[JsonObject]:
        pods = (self._store.get(POD, *key) for key in self._live.get(identity(found), ()))
        return [pod for pod in pods if pod is not None]

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


def _owner(pod: JsonObject | None) -> Owner | None:
    return None if pod is None or not is_live(pod) else controller_key(pod)


def _departure(pod: JsonObject) -> tuple[int, int, int, int, str, str]:
    """Deletion order when a set shrinks: without a node, not running, not ready; then by cost; the youngest first."""
    created = meta(pod)["creationTimestamp"]
    return (
        1 if spec(pod).get("nodeName") else 0,
        {"Pending": 0, "Unknown": 1}.get(status(pod).get("phase", "Pending"), 2),
        1 if is_ready(pod) else 0,
        deletion_cost(pod),
        _backwards(created),
        _backwards(meta(pod)["uid"]),
    )


def _backwards(text: str) -> str:
    """A key that sorts texts of equal length in descending order."""
    return "".join(chr(0x10FFFF - ord(letter)) for letter in text)


_REVISION = "controller-revision-hash"
_POD_NAME = "statefulset.kubernetes.io/pod-name"
_POD_INDEX = "apps.kubernetes.io/pod-index"


class StatefulSetController(WorkloadController):
    """Keeps `<name>-0` to `<name>-<replicas-1>`; one after the other unless the policy is `Parallel`."""

    kind, owned = STATEFUL_SET, POD

    def _keep(self, found: JsonObject) -> None:
        wanted = int(spec(found).get("replicas", 1))
        revision = f"{meta(found)['name']}-{digest(spec(found)['template'])}"
        parallel = spec(found).get("podManagementPolicy") == "Parallel"
        if self._scale(found, wanted, revision, parallel=parallel):
            self._update(found, revision)
        pods = [pod for pod in self._pods(found).values() if is_live(pod)]
        ready = sum(map(is_ready, pods))
        updated = sum(1 for pod in pods if labels_of(pod).get(_REVISION) == revision)
        counts: JsonObject = {
            "replicas": len(pods),
            "readyReplicas": ready or None,
            "availableReplicas": ready or None,
            "currentReplicas": updated or None,
            "updatedReplicas": updated or None,
            "updateRevision": revision,
        }
        self._store.patch(STATEFUL_SET, *key_of(found), {"status": counts})

    def _scale(self, found: JsonObject, wanted: int, revision: str, *, parallel: bool) -> bool:
        """Scale towards `wanted` pods; True when all of them exist and are ready."""
        namespace = meta(found)["namespace"]
        pods = self._pods(found)
        settled = True
        for index in range(wanted):
            name = f"{meta(found)['name']}-{index}"
            pod = pods.get(index)
            if pod is not None and status(pod).get("phase") in ENDED_PHASES:
                self._store.delete(POD, namespace, name)
                pod = None
            if pod is None and self._store.get(POD, namespace, name) is None:
                pod = self._store.create(POD, self._pod(found, index, name, revision))
            if pod is None or not (is_live(pod) and is_ready(pod)):
                settled = False
                if not parallel:
                    return False
        for index in sorted((index for index in pods if index >= wanted), reverse=True):
            if is_live(pods[index]):
                self._store.delete(POD, *key_of(pods[index]))
            settled = False
            if not parallel:
                break
        return settled

    def _update(self, found: JsonObject, revision: str) -> None:
        """Replace pods of an older template, the last one first, one at a time."""
        if (spec(found).get("updateStrategy") or {}).get("type") == "OnDelete":
            return
        for _, pod in sorted(self._pods(found).items(), reverse=True):
            if labels_of(pod).get(_REVISION, revision) != revision:
                self._store.delete(POD, *key_of(pod))
                return

    def _pods(self, found: JsonObject) -> dict[int, JsonObject]:
        prefix = f"{meta(found)['name']}-"
        pods = {}
        for pod in self._store.owned(found, POD):
            number = whole_number(meta(pod)["name"].removeprefix(prefix))
            if number is not None:
                pods[number] = pod
        return pods

    def _pod(self, found: JsonObject, index: int, name: str, revision: str) -> JsonObject:
        marks = {_REVISION: revision, _POD_NAME: name, _POD_INDEX: str(index)}
        more: JsonObject = {"hostname": name}
        if spec(found).get("serviceName"):
            more["subdomain"] = spec(found)["serviceName"]
        claimed = self._claims(found, name)
        if claimed:
            others = (spec(found)["template"].get("spec") or {}).get("volumes") or ()
            more["volumes"] = [volume for volume in others if volume["name"] not in claimed]
            more["volumes"] += [
                {"name": volume, "persistentVolumeClaim": {"claimName": claim}} for volume, claim in claimed.items()
            ]
        return pod_from(spec(found)["template"], name=name, owner=found, labels=marks, spec=more)

    def _claims(self, found: JsonObject, pod: str) -> dict[str, str]:
        """Create the missing claims of one pod, which outlive it; returns names of volumes to names of claims."""
        claims: dict[str, str] = {}
        namespace = meta(found)["namespace"]
        for template in spec(found).get("volumeClaimTemplates") or ():
            volume = meta(template)["name"]
            claims[volume] = f"{volume}-{pod}"
            if self._store.get(CLAIM, namespace, claims[volume]) is None:
                self._store.create(CLAIM, claim_from(template, claims[volume], namespace))
        return claims
