"""Event objects: one per object, component, reason and message, counting its repetitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.objects import EVENT, JsonObject
from capcard_sched.model.kinds import KIND_BY_NAME

if TYPE_CHECKING:
    from capcard_sched.model.intents import EmitEvent
    from capcard_sched.simulation.store import Store


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
        involved: JsonObject = {
            "kind": target.kind,
            "apiVersion": KIND_BY_NAME[target.kind].api_version,
            "name": target.name,
            "uid": uid,
        }
        if target.namespace:
            involved["namespace"] = target.namespace
        self._names[identity] = (namespace, name)
        self._store.create(
            EVENT,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": involved,
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
