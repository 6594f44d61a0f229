"""Bindings of the simulated backend that wait for the binding conditions of devices."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from capcard_sched.controllers.objects import status
from capcard_sched.model.binding_conditions import (
    BindingState,
    PreparedClaimStatus,
    binding_state,
    has_binding_conditions,
)
from capcard_sched.model.intents import Bind
from capcard_sched.simulation.clock import SECOND
from capcard_sched.simulation.kinds import RESOURCE_CLAIM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from capcard_sched.model.device_objects import Allocation
    from capcard_sched.model.intents import ClaimAllocation, Intent
    from capcard_sched.simulation.store import Change, Store


class WaitingBinds:
    """Holds the bindings of pods until their devices are ready; those of a gang until the devices of all are."""

    def __init__(
        self,
        store: Store,
        finish: Callable[[Bind], None],
        fail: Callable[[Bind, str], None],
        report: Callable[[Bind, str], None],
    ) -> None:
        """`finish` binds a pod; `fail` undoes its reservations, with the reason; `report`: what it waits for."""
        self._store, self._finish, self._fail, self._report = store, finish, fail, report
        #: By key of the gang, or uid of the pod.
        self._groups: dict[str, list[Bind]] = {}
        store.observe(self._observe)

    def expect(self, intents: Iterable[Intent]) -> None:
        """Notes the gangs of a session with devices that have binding conditions, before their first binding."""
        for intent in intents:
            if isinstance(intent, Bind) and intent.gang and any(map(has_binding_conditions, self._allocations(intent))):
                self._groups.setdefault(intent.gang, [])

    def add(self, bind: Bind) -> bool:
        """Holds a binding whose claims are reserved; False if it need not wait."""
        key = bind.gang or bind.uid
        states = [self._state(bind, wanted) for wanted in bind.claims or ()]
        if key not in self._groups and not any(any(state) for state in states):
            return False
        self._groups.setdefault(key, []).append(bind)
        for state in states:
            if state.waiting:
                self._report(bind, state.waiting)
                break
        for seconds in sorted({0, *(wanted.timeout for wanted in bind.claims or ())}):
            self._store.clock.after(seconds * SECOND, partial(self._continue, key))
        return True

    def _allocations(self, bind: Bind) -> Iterator[Allocation | None]:
        for wanted in bind.claims or ():
            yield wanted.allocation or self._status(bind, wanted).allocation

    def _status(self, bind: Bind, wanted: ClaimAllocation) -> PreparedClaimStatus:
        claim = self._store.get(RESOURCE_CLAIM, bind.namespace, wanted.claim)
        found = status(claim) if claim is not None else {}
        try:
            return msgspec.convert(found, PreparedClaimStatus)
        except msgspec.ValidationError:  # of `devices`, which no decision reads
            return msgspec.convert({**found, "devices": None}, PreparedClaimStatus)

    def _state(self, bind: Bind, wanted: ClaimAllocation) -> BindingState:
        return binding_state(self._status(bind, wanted), self._store.clock.unix, wanted.timeout)

    def _observe(self, change: Change) -> None:
        if change.kind != RESOURCE_CLAIM:
            return
        for key, binds in self._groups.items():
            names = {(bind.namespace, wanted.claim) for bind in binds for wanted in bind.claims or ()}
            if change.key in names:
                self._store.clock.after(0, partial(self._continue, key))

    def _continue(self, key: str) -> None:
        """Continues the bindings of a group if all its devices are ready, or one of them cannot be prepared."""
        binds = self._groups.get(key, [])
        states = [self._state(bind, wanted) for bind in binds for wanted in bind.claims or ()]
        failed = next((state.failed for state in states if state.failed), "")
        if not binds or (not failed and any(state.waiting for state in states)):
            return
        del self._groups[key]
        for bind in binds:
            if failed:
                self._fail(bind, failed)
            else:
                self._finish(bind)
