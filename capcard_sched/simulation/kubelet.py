"""The fake kubelets: the life of pods on their nodes, and the conditions and taints of nodes.

A pod on a node runs at once, ends after its annotated duration, and terminates for its grace period. Nodes get a
`Ready` condition unless they have one; taints follow from conditions and from cordoning; pods
of a node that is gone for `ORPHAN_DELAY` are deleted, as Kubernetes does. While a node is not ready, its pods do not
change: none starts, completes, or ends its termination.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from capcard_sched.controllers.objects import ENDED_PHASES, POD, JsonObject, annotations_of, key_of, meta, spec, status
from capcard_sched.model.annotations import (
    BIND_PHASE,
    COOLDOWN_TIME,
    NODE_UNSCHEDULABLE,
    SIMULATION_DURATION,
    SIMULATION_EXIT_CODE,
    VGPU_DEVICES_TO_ALLOCATE,
    VGPU_TIME,
)
from capcard_sched.model.node_conditions import LOST_TAINTS, NOT_READY_TAINT, UNREACHABLE_TAINT
from capcard_sched.model.timestamps import DurationError, parse_span, parse_time
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.kinds import NODE
from capcard_sched.simulation.store import Change, Store, grace_period
from capcard_sched.simulation.workloads.claims import missing_claims

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.simulation.clock import Timer

#: Microseconds for which a node must be gone before its pods are deleted.
ORPHAN_DELAY = 40 * SECOND
_RUNNING_CONDITIONS = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


def annotated_end(pod: JsonObject, started: int) -> int | None:
    """The end of a running pod by its annotated duration, microseconds; None: it runs for ever.

    `started`: the moment at which it was first seen running.
    """
    duration = annotations_of(pod).get(SIMULATION_DURATION)
    try:
        return None if duration is None else started + parse_span(duration)
    except DurationError:
        return None  # rejected on input


class Kubelet:
    """All kubelets of the cluster."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._end_of: Callable[[JsonObject, int], int | None] = annotated_end
        self._clock = store.clock
        self._pods: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._nodes: OrderedDict[str, None] = OrderedDict()
        #: Pod uid to the timer of its end, or of its removal while it terminates.
        self._timers: dict[str, Timer] = {}
        self._started: dict[str, int] = {}
        self._terminating: set[str] = set()
        self._on_node: dict[str, dict[tuple[str, str], None]] = {}
        self._orphans: dict[str, Timer] = {}
        #: Nodes that are not ready, or gone.
        self._lost: set[str] = set()
        #: Node to the keys of the taints that follow from its conditions.
        self._tainted: dict[str, set[str]] = {}

    def observe(self, change: Change) -> None:
        """Queue changed pods and nodes."""
        if change.kind == POD:
            self._note_pod(change)
        elif change.kind == NODE:
            self._nodes[change.key[1]] = None
            if change.verb == "added":
                self._pods.update(self._on_node.get(change.key[1], {}))

    def _note_pod(self, change: Change) -> None:
        key = change.key
        old_node = spec(change.old).get("nodeName") if change.old else None
        new_node = spec(change.new).get("nodeName") if change.new else None
        if old_node and old_node != new_node:
            self._on_node.get(old_node, {}).pop(key, None)
        if new_node:
            if old_node != new_node:
                self._on_node.setdefault(new_node, {})[key] = None
            self._pods[key] = None
        elif change.new and meta(change.new).get("deletionTimestamp"):
            self._pods[key] = None
        if change.new is None or (change.old is not None and meta(change.old)["uid"] != meta(change.new)["uid"]):
            self._forget(meta(change.old or change.object)["uid"])

    def use_ends(self, end_of: Callable[[JsonObject, int], int | None]) -> None:
        """Use other ends of running pods than the annotated ones, also for pods that run already."""
        self._end_of = end_of
        for pods in self._on_node.values():
            self._pods.update(pods)

    def ends(self) -> dict[str, int]:
        """Uid of each pod with a timer to the moment of its end, or of its removal, microseconds."""
        return {uid: timer.due for uid, timer in self._timers.items()}

    def reconcile(self) -> bool:
        """Sync the queued pods and nodes; whether there were any."""
        progressed = bool(self._pods or self._nodes)
        while self._nodes:
            name, _ = self._nodes.popitem(last=False)
            self._keep_node(name)
        while self._pods:
            key, _ = self._pods.popitem(last=False)
            pod = self._store.get(POD, *key)
            if pod is not None:
                self._keep_pod(pod)
        return progressed

    def _keep_pod(self, pod: JsonObject) -> None:
        uid = meta(pod)["uid"]
        phase = status(pod).get("phase")
        if spec(pod).get("nodeName") in self._lost:
            self._pause(uid)
            return
        if meta(pod).get("deletionTimestamp"):
            if uid not in self._terminating:
                self._forget(uid)
                self._terminating.add(uid)
                delay = self._grace_left(pod) if spec(pod).get("nodeName") else 0
                self._timers[uid] = self._clock.after(delay, lambda: self._remove(pod))
            return
        if phase in ENDED_PHASES:
            self._forget(uid)
        elif phase == "Pending":
            if self._store.get(NODE, "", spec(pod)["nodeName"]) is not None and not missing_claims(self._store, pod):
                self._start(pod)
        elif phase == "Running" and self._stamp_conditions(pod):
            pass  # the patch queues it again
        elif phase == "Running":
            self._keep_end(pod, uid)

    def _pause(self, uid: str) -> None:
        """Stop the timer of a pod, which is set again when its node is ready."""
        timer = self._timers.pop(uid, None)
        if timer is not None:
            timer.cancel()
        self._terminating.discard(uid)

    def _keep_end(self, pod: JsonObject, uid: str) -> None:
        """Set the timer for the end of a running pod: its duration after it was first seen running."""
        end = self._end_of(pod, self._started.setdefault(uid, self._clock.now))
        due = None if end is None else max(self._clock.now, end)
        timer = self._timers.pop(uid, None)
        if timer is not None and timer.due == due:
            self._timers[uid] = timer
            return
        if timer is not None:
            timer.cancel()
        if due is not None:
            self._timers[uid] = self._clock.after(due - self._clock.now, lambda: self._finish(pod))

    def _stamp_conditions(self, pod: JsonObject) -> bool:
        """Add conditions to a running pod of the input that has a cool-down and no conditions."""
        state = status(pod)
        known = COOLDOWN_TIME in annotations_of(pod) or COOLDOWN_TIME in (meta(pod).get("labels") or {})
        if not known or state.get("conditions"):
            return False
        stamp = state.get("startTime") or meta(pod)["creationTimestamp"]
        conditions = [{"type": name, "status": "True", "lastTransitionTime": stamp} for name in _RUNNING_CONDITIONS]
        self._patch(pod, {"status": {"conditions": conditions}})
        return True

    def _grace_left(self, pod: JsonObject) -> int:
        """Microseconds until the deletion timestamp; a timestamp before the run gets a whole grace period."""
        left = round((parse_time(meta(pod)["deletionTimestamp"]) - EPOCH) * SECOND) - self._clock.now
        grace = grace_period(pod)
        return left if 0 < left <= grace else grace

    def _start(self, pod: JsonObject) -> None:
        stamp = self._clock.timestamp()
        state = status(pod)
        conditions = state.get("conditions") or []
        for name in _RUNNING_CONDITIONS:
            conditions = with_condition(conditions, {"type": name, "status": "True"}, stamp)
        containers = [
            {
                "name": container.get("name", ""),
                "image": container.get("image", ""),
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": stamp}},
            }
            for container in spec(pod).get("containers") or ()
        ]
        patch = {
            "phase": "Running",
            "startTime": state.get("startTime") or stamp,
            "conditions": conditions,
            "containerStatuses": containers,
            "nominatedNodeName": None,
        }
        self._patch(pod, {"status": patch, **_devices_served(pod)})

    def _finish(self, pod: JsonObject) -> None:
        live = self._live(pod)
        if live is None:
            return
        code = int(annotations_of(live).get(SIMULATION_EXIT_CODE, "0"))
        stamp = self._clock.timestamp()
        conditions = status(live).get("conditions") or []
        reason = "PodFailed" if code else "PodCompleted"
        for name in ("ContainersReady", "Ready"):
            conditions = with_condition(conditions, {"type": name, "status": "False", "reason": reason}, stamp)
        ended = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "startedAt": status(live).get("startTime", stamp),
            "finishedAt": stamp,
        }
        containers = [
            {**container, "ready": False, "started": False, "state": {"terminated": ended}}
            for container in status(live).get("containerStatuses") or ({"name": "", "restartCount": 0},)
        ]
        phase = "Failed" if code else "Succeeded"
        patch = {"phase": phase, "conditions": conditions, "containerStatuses": containers}
        self._patch(live, {"status": patch})

    def _remove(self, pod: JsonObject) -> None:
        if self._live(pod) is not None:
            self._store.remove(POD, *key_of(pod))

    def _live(self, pod: JsonObject) -> JsonObject | None:
        live = self._store.get(POD, *key_of(pod))
        return live if live is not None and meta(live)["uid"] == meta(pod)["uid"] else None

    def _patch(self, pod: JsonObject, patch: JsonObject) -> None:
        self._store.patch(POD, *key_of(pod), patch)

    def _forget(self, uid: str) -> None:
        timer = self._timers.pop(uid, None)
        if timer is not None:
            timer.cancel()
        self._terminating.discard(uid)
        self._started.pop(uid, None)

    def _keep_node(self, name: str) -> None:
        node = self._store.get(NODE, "", name)
        self._note_readiness(name, node)
        orphans = self._orphans.pop(name, None)
        if orphans is not None:
            orphans.cancel()
        if node is None:
            self._tainted.pop(name, None)
            if self._on_node.get(name):
                self._orphans[name] = self._clock.after(ORPHAN_DELAY, lambda: self._collect(name))
            return
        conditions = status(node).get("conditions") or []
        ready = next((condition for condition in conditions if condition.get("type") == "Ready"), None)
        patch: JsonObject = {}
        if ready is None:
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
            patch["status"] = {"conditions": with_condition(conditions, ready, self._clock.timestamp())}
        wanted = {"False": NOT_READY_TAINT, "Unknown": UNREACHABLE_TAINT}.get(ready.get("status", ""))
        names = {wanted} if wanted else set()
        if spec(node).get("unschedulable"):
            names.add(NODE_UNSCHEDULABLE)
        stale = self._tainted.get(name, set()) - names
        taints = spec(node).get("taints") or []
        kept = [taint for taint in taints if taint.get("key") not in stale]
        added = names - {taint.get("key") for taint in kept}
        kept += [{"key": key, "effect": "NoSchedule"} for key in sorted(added)]
        self._tainted[name] = (self._tainted.get(name, set()) - stale) | added
        if kept != taints:
            patch["spec"] = {"taints": kept or None}
        if patch:
            self._store.patch(NODE, "", name, patch)

    def _note_readiness(self, name: str, node: JsonObject | None) -> None:
        """Queue the pods of a node that became ready, or ceased to be."""
        is_lost = node is None or not is_ready(node)
        if is_lost is not (name in self._lost):
            (self._lost.add if is_lost else self._lost.discard)(name)
            self._pods.update(self._on_node.get(name, {}))

    def _collect(self, node: str) -> None:
        for key in list(self._on_node.get(node, {})):
            self._store.remove(POD, *key)


def is_ready(node: JsonObject) -> bool:
    """Whether condition and taints of a node allow that its kubelet works; a node without them is ready."""
    conditions = status(node).get("conditions") or ()
    if any(condition.get("type") == "Ready" and condition.get("status") != "True" for condition in conditions):
        return False
    taints = spec(node).get("taints") or ()
    return not any(taint.get("key") in LOST_TAINTS for taint in taints)


def _devices_served(pod: JsonObject) -> JsonObject:
    """The annotations that a device plugin writes when all containers of a pod have their devices."""
    if annotations_of(pod).get(BIND_PHASE) != "allocating":
        return {}
    served = {BIND_PHASE: "success", VGPU_TIME: str(2**64 - 1), VGPU_DEVICES_TO_ALLOCATE: ""}
    return {"metadata": {"annotations": {key: served[key] for key in served if key in annotations_of(pod)}}}


def with_condition(conditions: list[JsonObject], condition: JsonObject, stamp: str) -> list[JsonObject]:
    """Conditions with one of them set; its transition time moves only when its status does."""
    result = []
    placed = False
    for present in conditions:
        if present.get("type") != condition["type"]:
            result.append(present)
            continue
        same = present.get("status") == condition["status"]
        since = present.get("lastTransitionTime", stamp) if same else stamp
        result.append({**condition, "lastTransitionTime": since})
        placed = True
    if not placed:
        result.append({**condition, "lastTransitionTime": stamp})
    return result
