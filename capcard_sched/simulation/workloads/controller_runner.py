"""Runs the controllers on the simulated cluster: their events, and a work queue per controller."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from capcard_sched.controllers.objects import (
    EVENT,
    JOB,
    POD,
    Key,
    annotations_of,
    controller_of,
    key_of,
    labels_of,
    meta,
    owner_reference,
)
from capcard_sched.controllers.view import Create, Delete, Failure, Increment, Observe, Patch, is_as_good
from capcard_sched.model.annotations import JOB_NAME
from capcard_sched.model.intents import EmitEvent
from capcard_sched.model.involved_object import involved_object
from capcard_sched.model.kinds import kind_of
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.store import AlreadyExistsError

if TYPE_CHECKING:
    from capcard_sched.controllers.view import Controller, Write
    from capcard_sched.simulation.clock import Timer
    from capcard_sched.simulation.store import Change, Store


class EventRecorder:
    """Writes events into the store.

    `component` is the source of events that name none. Repetitions raise `count` and `lastTimestamp` of the first one.
    """

    def __init__(self, store: Store, component: str) -> None:
        self._store = store
        self._component = component
        self._names: dict[tuple[str, ...], tuple[str, str]] = {}
        self._made = 0

    def record(self, event: EmitEvent) -> None:
        """Create an event, or count a repetition."""
        target = event.object
        uid = target.uid
        if not uid:
            found = self._store.get(target.kind, target.namespace, target.name)
            uid = found["metadata"]["uid"] if found is not None else ""
        component = event.component or self._component
        identity = (target.kind, target.namespace, target.name, uid, component, event.type, event.reason, event.message)
        stamp = self._store.clock.timestamp()
        known = self._names.get(identity)
        if known is not None:
            present = self._store.get(EVENT, *known)
            if present is not None:
                count = int(present.get("count") or 1) + 1
                self._store.patch(EVENT, *known, {"count": count, "lastTimestamp": stamp})
                return
        namespace = target.namespace or "default"
        name = self._fresh_name(namespace, target.name)
        self._names[identity] = (namespace, name)
        self._store.create(
            EVENT,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": involved_object(target, uid),
                "reason": event.reason,
                "message": event.message,
                "type": event.type,
                "count": 1,
                "firstTimestamp": stamp,
                "lastTimestamp": stamp,
                "source": {"component": component},
                "reportingComponent": component,
            },
        )

    def _fresh_name(self, namespace: str, about: str) -> str:
        """A name that no event of the input has."""
        while True:
            self._made += 1
            name = f"{about}.{self._made:016x}"
            if self._store.get(EVENT, namespace, name) is None:
                return name


class ControllerRunner:
    """Reconciles the objects of one controller, one after the other, in the order in which they changed."""

    def __init__(self, store: Store, recorder: EventRecorder, controller: Controller) -> None:
        self._store = store
        self._recorder = recorder
        self._controller = controller
        self._queue: OrderedDict[Key, None] = OrderedDict()
        self._timers: dict[Key, Timer] = {}

    def observe(self, change: Change) -> None:
        """Queue the objects of a change."""
        if change.kind in self._controller.watches:
            for key in self._controller.keys(change.kind, change.old, change.new):
                self._queue[key] = None

    def reconcile(self) -> bool:
        """Reconcile until nothing is queued; whether anything was."""
        progressed = bool(self._queue)
        while self._queue:
            key, _ = self._queue.popitem(last=False)
            timer = self._timers.pop(key, None)
            if timer is not None:
                timer.cancel()
            result = self._controller.reconcile(self._store, key, self._store.clock.unix)
            for write in result.writes:
                error = self._write(write)
                if error:
                    failure = Failure(write, error, last=False)
                    for event in self._controller.failed(self._store, key, self._store.clock.unix, failure).writes:
                        self._write(event)
                    break
            if result.at is not None:
                self._wake(key, result.at)
        return progressed

    def _wake(self, key: Key, moment: float) -> None:
        delay = max(0, round((moment - EPOCH) * SECOND) - self._store.clock.now)
        self._timers[key] = self._store.clock.after(delay, lambda: self._queue.setdefault(key))

    def _write(self, write: Write) -> str:
        """Apply a write; the error, "" when there is none. A missing object is no error."""
        if isinstance(write, EmitEvent):
            self._recorder.record(write)
        elif isinstance(write, Create):
            try:
                self._store.create(kind_of(write.object), write.object)
            except AlreadyExistsError as error:
                present = self._store.get(kind_of(write.object), *key_of(write.object))
                return "" if present is not None and is_as_good(present, write) else str(error)
        elif not isinstance(write, Increment | Observe):
            present = self._store.get(*write.key)
            if present is None or (write.uid and meta(present)["uid"] != write.uid):
                return ""
            if write.version and meta(present)["resourceVersion"] != write.version:
                self._queue[write.key] = None
                return f"{write.key} was changed meanwhile"
            if isinstance(write, Patch):
                self._store.patch(*write.key, write.patch)
            elif isinstance(write, Delete):
                self._store.delete(*write.key)
        return ""


class JobAdoption:
    """Adopts pods that name a new Job and have no controller."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._jobs: dict[tuple[str, str], None] = {}

    def observe(self, change: Change) -> None:
        if change.kind == JOB and change.old is None:
            self._jobs[change.key] = None

    def reconcile(self) -> bool:
        """Adopt the pods of the queued Jobs; whether there were any."""
        jobs, self._jobs = self._jobs, {}
        for namespace, name in jobs:
            job = self._store.get(JOB, namespace, name)
            for pod in list(self._store.list(POD)) if job is not None else ():
                named = annotations_of(pod).get(JOB_NAME) or labels_of(pod).get(JOB_NAME)
                if job is not None and named == name and key_of(pod)[0] == namespace and controller_of(pod) is None:
                    self._store.patch(POD, *key_of(pod), {"metadata": {"ownerReferences": [owner_reference(job)]}})
        return bool(jobs)
