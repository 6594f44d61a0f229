"""The StatefulSet controller: numbered pods, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.jobs.pods import pod_from
from capcard_sched.controllers.objects import (
    CLAIM,
    ENDED_PHASES,
    POD,
    STATEFUL_SET,
    JsonObject,
    key_of,
    labels_of,
    meta,
    spec,
    status,
)
from capcard_sched.simulation.workloads.replicas import is_live, is_ready
from capcard_sched.simulation.workloads.templates import digest
from capcard_sched.simulation.workloads.volumes import claim_from
from capcard_sched.simulation.workloads.workqueue import Worklist

if TYPE_CHECKING:
    from capcard_sched.simulation.store import Change, Store

_REVISION = "controller-revision-hash"
_POD_NAME = "statefulset.kubernetes.io/pod-name"
_POD_INDEX = "apps.kubernetes.io/pod-index"


class StatefulSetController:
    """Keeps `<name>-0` to `<name>-<replicas-1>`; one after the other unless the policy is `Parallel`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sets = Worklist(store, STATEFUL_SET, POD)

    def observe(self, change: Change) -> None:
        """Queue sets that changed, or whose pods did."""
        self._sets.observe(change)

    def reconcile(self) -> bool:
        """Reconcile the queued sets; whether there were any."""
        worked = bool(self._sets)
        for found in self._sets.drain():
            self._keep(found)
        return worked

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
        for pod in self._store.owned(meta(found)["uid"], POD):
            number = meta(pod)["name"].removeprefix(prefix)
            if number.isascii() and number.isdigit():
                pods[int(number)] = pod
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
