"""The Deployment controller: one ReplicaSet per template, and rolling updates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from capcard_sched.controllers.objects import (
    APPS_API,
    DEPLOYMENT,
    POD,
    REPLICA_SET,
    JsonObject,
    annotations_of,
    controller_of,
    key_of,
    meta,
    owner_reference,
    spec,
    status,
)
from capcard_sched.model.numbers import percentage
from capcard_sched.simulation.workloads.workqueue import POD_TEMPLATE_HASH, WorkloadController, digest

if TYPE_CHECKING:
    from capcard_sched.simulation.store import Change

_NOT_COPIED = ("kubectl.kubernetes.io/last-applied-configuration",)


class DeploymentController(WorkloadController):
    """Scales the ReplicaSets of each Deployment: the current one to `spec.replicas`, the others to 0."""

    kind, owned = DEPLOYMENT, REPLICA_SET

    def observe(self, change: Change) -> None:
        """Queue Deployments that changed, or whose ReplicaSets did."""
        super().observe(change)
        if change.kind == POD and change.verb == "removed":
            self._note_departure(change)

    def _note_departure(self, change: Change) -> None:
        """Queue the Deployment of a removed pod: `Recreate` waits for the last old pod."""
        owner = controller_of(change.object)
        if owner is not None and owner.get("kind") == REPLICA_SET:
            found = self._store.get(REPLICA_SET, change.key[0], owner["name"])
            above = controller_of(found) if found is not None else None
            if above is not None and above.get("kind") == DEPLOYMENT:
                self._queued[change.key[0], above["name"]] = None

    def _keep(self, found: JsonObject) -> None:
        if spec(found).get("paused"):
            return
        owned = self._store.owned(found, REPLICA_SET)
        current = next((one for one in owned if _same_template(one, found)), None)
        old = [one for one in owned if one is not current]
        strategy = spec(found).get("strategy") or {}
        wanted = int(spec(found).get("replicas", 1))
        if strategy.get("type") == "Recreate":
            for one in old:
                self._scale(one, 0)
            if current is None and any(self._store.owned(one, POD) for one in old):
                return
            target = wanted
        else:
            surge, unavailable = _limits(strategy.get("rollingUpdate") or {}, wanted)
            present = int(spec(current).get("replicas", 0)) if current is not None else 0
            others = sum(int(spec(one).get("replicas", 0)) for one in old)
            target = wanted if not others else max(present, min(wanted, wanted + surge - others))
            target = min(target, wanted)
        current = self._create(found, target) if current is None else self._follow(current, found, target)
        if old and strategy.get("type") != "Recreate":
            self._shrink(old, current, wanted - unavailable)
        self._report(found)

    def _shrink(self, old: list[JsonObject], current: JsonObject, least: int) -> None:
        """Scale old ReplicaSets down while at least `least` pods stay ready; unready pods go first."""
        spare = sum(map(_ready, [*old, current])) - least
        for one in old:
            replicas = int(spec(one).get("replicas", 0))
            unready = replicas - _ready(one)
            gone = min(replicas, unready + max(0, spare))
            spare -= max(0, gone - unready)
            if gone:
                self._scale(one, replicas - gone)

    def _create(self, found: JsonObject, replicas: int) -> JsonObject:
        template = spec(found)["template"]
        mark = digest(template)
        described = template.get("metadata") or {}
        marks = {**(described.get("labels") or {}), POD_TEMPLATE_HASH: mark}
        notes = _copied(found)
        metadata: JsonObject = {
            "name": f"{meta(found)['name']}-{mark}",
            "namespace": meta(found)["namespace"],
            "labels": marks,
            "ownerReferences": [owner_reference(found)],
        }
        if notes:
            metadata["annotations"] = notes
        selector = spec(found).get("selector") or {"matchLabels": dict(described.get("labels") or {})}
        return self._store.create(
            REPLICA_SET,
            {
                "apiVersion": APPS_API,
                "kind": REPLICA_SET,
                "metadata": metadata,
                "spec": {
                    "replicas": replicas,
                    "selector": {
                        **selector,
                        "matchLabels": {**(selector.get("matchLabels") or {}), POD_TEMPLATE_HASH: mark},
                    },
                    "template": {**template, "metadata": {**described, "labels": marks}},
                },
            },
        )

    def _follow(self, one: JsonObject, found: JsonObject, replicas: int) -> JsonObject:
        wanted = _copied(found)
        stale = dict.fromkeys(key for key in annotations_of(one) if key not in wanted)
        patch: JsonObject = {"spec": {"replicas": replicas}}
        if wanted != annotations_of(one):
            patch["metadata"] = {"annotations": {**stale, **wanted}}
        return self._store.patch(REPLICA_SET, *key_of(one), patch)

    def _scale(self, one: JsonObject, replicas: int) -> None:
        self._store.patch(REPLICA_SET, *key_of(one), {"spec": {"replicas": replicas}})

    def _report(self, found: JsonObject) -> None:
        sets = self._store.owned(found, REPLICA_SET)
        total = sum(int(status(one).get("replicas") or 0) for one in sets)
        ready = sum(int(status(one).get("readyReplicas") or 0) for one in sets)
        updated = sum(int(status(one).get("replicas") or 0) for one in sets if _same_template(one, found))
        counts: JsonObject = {
            "replicas": total or None,
            "updatedReplicas": updated or None,
            "readyReplicas": ready or None,
            "availableReplicas": ready or None,
            "unavailableReplicas": max(0, int(spec(found).get("replicas", 1)) - ready) or None,
        }
        self._store.patch(DEPLOYMENT, *key_of(found), {"status": counts})


def _ready(one: JsonObject) -> int:
    """Ready pods of a ReplicaSet, at most its replicas: the status may lag behind the spec."""
    return min(int(status(one).get("readyReplicas") or 0), int(spec(one).get("replicas", 0)))


def _same_template(one: JsonObject, found: JsonObject) -> bool:
    """Whether a ReplicaSet has the present template of a Deployment."""
    template = spec(one).get("template") or {}
    described = template.get("metadata") or {}
    marks = {key: value for key, value in (described.get("labels") or {}).items() if key != POD_TEMPLATE_HASH}
    wanted = spec(found)["template"]
    wanted_meta = wanted.get("metadata") or {}
    return (
        template.get("spec") == wanted.get("spec")
        and marks == (wanted_meta.get("labels") or {})
        and (described.get("annotations") or {}) == (wanted_meta.get("annotations") or {})
    )


def _copied(found: JsonObject) -> dict[str, str]:
    """Annotations that a Deployment copies to its ReplicaSets."""
    return {key: value for key, value in annotations_of(found).items() if key not in _NOT_COPIED}


def _limits(rolling: JsonObject, replicas: int) -> tuple[int, int]:
    """(maxSurge, maxUnavailable) as numbers; percentages round up and down; maxUnavailable is 1 when both are 0."""
    surge = _share(rolling.get("maxSurge", "25%"), replicas, up=True)
    unavailable = _share(rolling.get("maxUnavailable", "25%"), replicas, up=False)
    return surge, unavailable if surge or unavailable else 1


def _share(value: int | str, replicas: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    share = replicas * percentage(value) / 100
    return math.ceil(share) if up else math.floor(share)
