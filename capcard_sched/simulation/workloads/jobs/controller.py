"""The Job controller itself: requests in, phases and pods out (controllers reference §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.annotations import JOB_NAME
from capcard_sched.model.intents import EmitEvent, ObjectRef
from capcard_sched.simulation.admission import DEFAULT_MAX_RETRY
from capcard_sched.simulation.duration import format_duration
from capcard_sched.simulation.kinds import (
    BATCH_API,
    COMMAND,
    JOB,
    POD,
    POD_GROUP,
    JsonObject,
    annotations_of,
    controller_of,
    labels_of,
    meta,
    spec,
    status,
)
from capcard_sched.simulation.store import ENDED_PHASES, key_of
from capcard_sched.simulation.workloads.jobs.members import group_for, group_of, group_spec, pod_for, pod_name
from capcard_sched.simulation.workloads.jobs.phases import (
    ABORTED,
    FINISHED,
    LEADS_TO,
    PENDING,
    RESTARTING,
    RUNNING,
    TAKES_DOWN,
    Census,
    after_restarting,
    after_running,
    census,
)
from capcard_sched.simulation.workloads.jobs.policies import SYNC, Answer, Request, answer, exit_code, restarts
from capcard_sched.simulation.workloads.templates import owner_reference

if TYPE_CHECKING:
    from capcard_sched.simulation.clock import Timer
    from capcard_sched.simulation.events import EventRecorder
    from capcard_sched.simulation.store import Change, Store

_Key = tuple[str, str]
_LIVE_PHASES = ("Pending", "Running")
#: Source of the events on Jobs.
_COMPONENT = "vc-controller-manager"


class JobController:
    """Runs every Job through its phases."""

    def __init__(self, store: Store, recorder: EventRecorder) -> None:
        self._store = store
        self._recorder = recorder
        self._requests: dict[_Key, list[Request]] = {}
        #: Pods we delete ourselves: their leaving is no event (C-01).
        self._ours: set[str] = set()
        #: Pods whose leaving was an event already (C-04).
        self._evicted: set[str] = set()
        self._timers: dict[tuple[str, str], tuple[Timer, Request, str]] = {}
        self._met: set[str] = set()

    # --- what happens ---

    def observe(self, change: Change) -> None:
        """Turn changes of Jobs, their pods and groups, and commands into requests."""
        if change.kind == JOB:
            if change.new is not None:
                self._requests.setdefault(change.key, [])
        elif change.kind == POD:
            self._note_pod(change)
        elif change.kind == POD_GROUP:
            owner = _job_of(change.object)
            if owner is not None:
                requests = self._requests.setdefault((change.key[0], owner["name"]), [])
                phase = status(change.new).get("phase") if change.new else None
                if phase == "Unknown" and change.old and status(change.old).get("phase") != "Unknown":
                    requests.append(Request("Unknown", owner["uid"]))
        elif change.kind == COMMAND and change.verb == "added":
            target = change.object.get("target") or {}
            if target.get("kind") == JOB:
                request = Request("CommandIssued", action=change.object.get("action", SYNC))
                self._requests.setdefault((change.key[0], target["name"]), []).append(request)

    def _note_pod(self, change: Change) -> None:
        owner = _job_of(change.object)
        if owner is None:
            return
        requests = self._requests.setdefault((change.key[0], owner["name"]), [])
        pod = change.object
        uid = meta(pod)["uid"]
        phase = status(pod).get("phase")
        before = status(change.old).get("phase") if change.old else None
        leaving = change.new is None or bool(meta(pod).get("deletionTimestamp"))
        if leaving:
            ended = change.new is None and phase in ENDED_PHASES
            if uid not in self._ours and uid not in self._evicted and not ended:
                self._evicted.add(uid)
                requests.append(Request("PodEvicted", owner["uid"], pod))
            if change.new is None:
                self._ours.discard(uid)
                self._evicted.discard(uid)
            return
        if phase == before:
            if phase in _LIVE_PHASES and restarts(pod):
                requests.append(Request("TaskFailed", owner["uid"], pod))
            return
        if phase == "Failed":
            requests.append(Request("PodFailed", owner["uid"], pod, exit_code(pod)))
        elif phase == "Succeeded":
            requests.append(Request("TaskCompleted", owner["uid"], pod))
        elif phase == "Running":
            requests.append(Request("PodRunning", owner["uid"], pod))
        elif phase == "Pending":
            requests.append(Request("PodPending", owner["uid"], pod))

    def reconcile(self) -> bool:
        """Work off all requests, then bring each touched Job in line; whether there was anything to look at."""
        worked = bool(self._requests)
        while self._requests:
            key = next(iter(self._requests))
            requests = self._requests.pop(key)
            self._consume_commands(key)
            if self._store.get(JOB, *key) is None:
                continue
            self._adopt(key)
            for request in requests:
                self._serve(key, request)
            self._sync(key)
        return worked

    def _consume_commands(self, key: _Key) -> None:
        for command in list(self._store.list(COMMAND)):
            target = command.get("target") or {}
            if target.get("kind") == JOB and (meta(command)["namespace"], target.get("name")) == key:
                self._store.delete(COMMAND, *key_of(command))

    def _adopt(self, key: _Key) -> None:
        """Pods of the start that say they are the Job's and belong to nobody become its own."""
        job = self._job(key)
        if meta(job)["uid"] in self._met:
            return
        self._met.add(meta(job)["uid"])
        for pod in list(self._store.list(POD)):
            named = annotations_of(pod).get(JOB_NAME) or labels_of(pod).get(JOB_NAME)
            if named == key[1] and meta(pod)["namespace"] == key[0] and controller_of(pod) is None:
                self._store.patch(POD, *key_of(pod), {"metadata": {"ownerReferences": [owner_reference(job)]}})

    # --- requests ---

    def _serve(self, key: _Key, request: Request) -> None:
        job = self._job(key)
        if request.event == "TaskCompleted" and not self._task_is_complete(job, request.task):
            return
        if request.event == "TaskFailed" and not self._task_has_failed(job, request.task):
            return
        self._cancel_outdated(job, request)
        found = answer(job, request)
        if found.action == SYNC:
            return
        if found.delay:
            if self._delay(key, request, found):
                self._tell(job, f"Execute action {found.action} after {format_duration(found.delay)}")
            return
        self._tell(job, f"Start to execute action {found.action} ")
        self._cancel_timers(meta(job)["uid"])
        self._act(key, found.action, request)

    def _task_is_complete(self, job: JsonObject, name: str) -> bool:
        replicas = next((int(task["replicas"]) for task in spec(job)["tasks"] if task["name"] == name), 1)
        return census(self._store, job).by_task.get(name, {}).get("Succeeded", 0) >= replicas

    def _task_has_failed(self, job: JsonObject, name: str) -> bool:
        """Whether containers of the task's live pods have started anew as often as its `maxRetry` allows."""
        task: JsonObject = next((task for task in spec(job)["tasks"] if task["name"] == name), {})
        most = int(task.get("maxRetry") or DEFAULT_MAX_RETRY)
        if most < 0:
            return False
        live = (
            pod
            for pod in self._store.owned(meta(job)["uid"], POD)
            if Request("", pod=pod).task == name and status(pod).get("phase") in _LIVE_PHASES
        )
        return sum(map(restarts, live)) >= most

    def _tell(self, job: JsonObject, message: str) -> None:
        about = ObjectRef("Job", meta(job)["namespace"], meta(job)["name"], meta(job)["uid"])
        self._recorder.record(EmitEvent(about, "Normal", "ExecuteAction", message, _COMPONENT))

    def _delay(self, key: _Key, request: Request, found: Answer) -> bool:
        """Put the action off; False when it is put off already."""
        slot = (meta(self._job(key))["uid"], request.pod_uid)
        present = self._timers.get(slot)
        if present is not None and present[2] == found.action and present[0].live:
            return False
        due = request._replace(action=found.action)
        timer = self._store.clock.after(found.delay, lambda: self._requests.setdefault(key, []).append(due))
        self._timers[slot] = (timer, request, found.action)
        return True

    def _cancel_outdated(self, job: JsonObject, request: Request) -> None:
        slot = (meta(job)["uid"], request.pod_uid)
        present = self._timers.get(slot)
        if present is None or request.pod is None:
            return
        event = present[1].event
        if (event == "PodPending" and request.event != "PodPending") or (
            event in ("PodFailed", "PodEvicted") and request.event == "PodRunning"
        ):
            present[0].cancel()
            del self._timers[slot]

    def _cancel_timers(self, job_uid: str) -> None:
        for slot in [slot for slot in self._timers if slot[0] == job_uid]:
            self._timers.pop(slot)[0].cancel()

    # --- actions ---

    def _act(self, key: _Key, action: str, request: Request) -> None:
        job = self._job(key)
        phase = _phase(job)
        if phase in FINISHED or (phase in LEADS_TO and (action != "ResumeJob" or LEADS_TO[phase] != ABORTED)):
            return
        if action == "ResumeJob":
            if phase == ABORTED or LEADS_TO.get(phase) == ABORTED:
                self._kill(job, keep_ended=True)
                self._turn(key, RESTARTING, retried=True)
            return
        if phase == ABORTED:
            return
        if action in TAKES_DOWN:
            self._kill(job, keep_ended=True)
            self._turn(key, TAKES_DOWN[action])
        elif action == "RestartJob":
            if phase != RESTARTING:
                last = int(status(job).get("retryCount", 0)) >= int(spec(job)["maxRetry"]) - 1
                self._kill(job, keep_ended=last)
                self._turn(key, RESTARTING, retried=True)
        elif action in ("RestartTask", "RestartPod"):
            self._kill_target(job, request, whole_task=action == "RestartTask")
            if phase != RESTARTING:
                self._turn(key, RESTARTING, retried=True)

    def _kill(self, job: JsonObject, *, keep_ended: bool) -> None:
        """Delete the pods and the PodGroup: the next gang is admitted as a whole."""
        self._delete_pods(job, keep_ended=keep_ended)
        version = int(status(job).get("version", 0)) + 1
        self._store.patch(JOB, *key_of(job), {"status": {"version": version}})

    def _delete_pods(self, job: JsonObject, *, keep_ended: bool) -> None:
        for pod in self._store.owned(meta(job)["uid"], POD):
            if not (keep_ended and status(pod).get("phase") in ENDED_PHASES):
                self._delete_pod(pod)
        group = group_of(self._store, job)
        if group is not None:
            self._store.delete(POD_GROUP, *key_of(group))

    def _kill_target(self, job: JsonObject, request: Request, *, whole_task: bool) -> None:
        """Delete the pods of a task, or the one pod; the PodGroup stays (C-02)."""
        for pod in self._store.owned(meta(job)["uid"], POD):
            same_task = Request("", pod=pod).task == request.task
            if (whole_task and same_task) or meta(pod)["uid"] == request.pod_uid:
                self._delete_pod(pod)

    def _delete_pod(self, pod: JsonObject) -> None:
        self._ours.add(meta(pod)["uid"])
        if not meta(pod).get("deletionTimestamp"):
            self._store.delete(POD, *key_of(pod))

    # --- sync ---

    def _sync(self, key: _Key) -> None:
        job = self._job(key)
        phase = _phase(job)
        if phase in FINISHED or phase in LEADS_TO or phase == ABORTED:
            self._delete_pods(job, keep_ended=True)
        elif phase != RESTARTING:
            self._keep_members(job)
        count = census(self._store, job)
        self._report(key, count)
        following = self._following(self._job(key), count)
        if following != phase:
            self._turn(key, following)

    def _following(self, job: JsonObject, count: Census) -> str:
        phase = _phase(job)
        if phase == RESTARTING:
            return after_restarting(job, count)
        if phase in LEADS_TO:
            return phase if count.alive else LEADS_TO[phase]
        if phase == RUNNING:
            return after_running(job, count)
        if phase == PENDING and (present := count.running + count.succeeded + count.failed):
            return RUNNING if present >= int(spec(job)["minAvailable"]) else PENDING
        return phase

    def _keep_members(self, job: JsonObject) -> None:
        """The PodGroup at once, the pods when it has left Pending; surplus pods go."""
        group = group_of(self._store, job)
        if group is None:
            group = self._store.create(POD_GROUP, group_for(self._store, job))
        else:
            wanted = group_spec(self._store, job)
            kept = ("minMember", "minTaskMember", "minResources", "priorityClassName")
            patch: JsonObject = {field: wanted[field] for field in kept if field in wanted}
            for field in ("minTaskMember", "minResources"):
                patch[field] = {**dict.fromkeys(spec(group).get(field) or {}), **patch[field]}
            self._store.patch(POD_GROUP, *key_of(group), {"spec": patch})
        if status(group).get("phase") in (None, "", "Pending"):
            return
        namespace = meta(job)["namespace"]
        wanted_names = set()
        for task in spec(job)["tasks"]:
            open_now = self._may_start(job, task)
            for index in range(int(task["replicas"])):
                name = pod_name(job, task, index)
                wanted_names.add(name)
                if open_now and self._store.get(POD, namespace, name) is None:
                    self._store.create(POD, pod_for(job, task, index, meta(group)["name"]))
        for pod in self._store.owned(meta(job)["uid"], POD):
            if meta(pod)["name"] not in wanted_names:
                self._delete_pod(pod)

    def _may_start(self, job: JsonObject, task: JsonObject) -> bool:
        """Whether the tasks this one depends on have come far enough; ended pods count (C-23)."""
        depends = task.get("dependsOn") or {}
        names = depends.get("name") or ()
        if not names:
            return True
        by_task = census(self._store, job).by_task
        minimum = {other["name"]: int(other["minAvailable"]) for other in spec(job)["tasks"]}
        met = [
            by_task.get(name, {}).get("Running", 0) + by_task.get(name, {}).get("Succeeded", 0) >= minimum[name]
            for name in names
        ]
        return any(met) if depends.get("iteration") == "any" else all(met)

    def _report(self, key: _Key, count: Census) -> None:
        job = self._job(key)
        present = status(job).get("taskStatusCount") or {}
        by_task: JsonObject = dict.fromkeys(present)
        for name, phases in sorted(count.by_task.items()):
            stale = dict.fromkeys((present.get(name) or {}).get("phase") or {})
            by_task[name] = {"phase": {**stale, **phases}}
        patch: JsonObject = {
            "minAvailable": spec(job)["minAvailable"],
            "pending": count.pending or None,
            "running": count.running or None,
            "succeeded": count.succeeded or None,
            "failed": count.failed or None,
            "terminating": count.terminating or None,
            "unknown": count.unknown or None,
            "taskStatusCount": by_task,
        }
        self._store.patch(JOB, *key, {"status": patch})

    def _turn(self, key: _Key, phase: str, *, retried: bool = False) -> None:
        job = self._job(key)
        stamp = self._store.clock.timestamp()
        entry = {"status": phase, "lastTransitionTime": stamp}
        others = [one for one in status(job).get("conditions") or () if one.get("status") != phase]
        patch: JsonObject = {
            "state": {"phase": phase, "lastTransitionTime": stamp},
            "conditions": [*others, entry],
        }
        if retried:
            patch["retryCount"] = int(status(job).get("retryCount", 0)) + 1
        self._store.patch(JOB, *key, {"status": patch})
        if phase in FINISHED:
            self._cancel_timers(meta(job)["uid"])

    def _job(self, key: _Key) -> JsonObject:
        found = self._store.get(JOB, *key)
        assert found is not None
        return found


def _job_of(obj: JsonObject) -> JsonObject | None:
    """The controller reference to a Job of ours."""
    owner = controller_of(obj)
    if owner is None or owner.get("kind") != JOB or owner.get("apiVersion") != BATCH_API:
        return None
    return owner


def _phase(job: JsonObject) -> str:
    return str((status(job).get("state") or {}).get("phase") or PENDING)
