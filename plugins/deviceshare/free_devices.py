"""The free devices of nodes by state, for other plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from capcard_sched.framework.api.shared_devices import DeviceChanges

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import numpy as np
    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import NodeView, Rows
    from capcard_sched.model.job import Node
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.deviceshare.card_columns import CardBatch
    from capcard_sched.plugins.deviceshare.device_rows import DeviceRows
    from capcard_sched.plugins.deviceshare.device_states import Requests
    from capcard_sched.plugins.deviceshare.device_type import DeviceType
    from capcard_sched.plugins.deviceshare.result_cache import DeviceResultCache
    from capcard_sched.plugins.deviceshare.shared_card import SharedCard

    #: Index of the kind of devices, and state of the card.
    _Device: TypeAlias = tuple[int, SharedCard]
    _Devices: TypeAlias = tuple[int, CardBatch]


class FreeDevices:
    """Implements `framework.api.shared_devices.SharedDevices`; a request is one request per kind of devices."""

    def __init__(self, plugin: str, types: Sequence[DeviceType], rows: DeviceRows, results: DeviceResultCache) -> None:
        self._plugin = plugin
        self._types = types
        self._rows = rows
        self._results = results
        #: See `SharedDevices`.
        self.epoch = 0

    @property
    def offers(self) -> int:
        """See `SharedDevices`."""
        return self._rows.offers

    def request_of(self, cls: TaskClass) -> Hashable | None:
        """The requests of a class by kind of devices; None when it has none."""
        results = self._results.of(cls)
        return None if results is None else results.requests

    def states(self, view: NodeView) -> Rows:
        """The state of each entry: int64 [k]."""
        return self._rows.numbers_of(view, self._plugin)

    def idle_state(self, node: Node) -> int:
        """The state of a node without pods."""
        devices = self._rows.at(node)
        ledgers = [None] * len(self._types) if devices is None else devices.ledgers
        return self._rows.states.number(tuple([None if ledger is None else ledger.idle for ledger in ledgers]))

    def state_after(self, request: Requests, state: int) -> int:
        return self._results.of_requests(request).after(state)

    def states_after(self, request: Requests, states: Rows) -> Rows:
        return self._results.of_requests(request).after_many(states)

    def changes(self, request: Requests, states: Rows) -> DeviceChanges | None:
        """See `SharedDevices`."""
        found = self._results.of_requests(request).changes(states)
        if found is None:
            return None
        return DeviceChanges(found.fits, (found.kind, found.before), (found.kind, found.after))

    def devices(self, state: int) -> list[_Device]:
        cards = self._rows.states.cards_of(state) or ()
        return [(kind, card) for kind, own in enumerate(cards) for card in own or ()]

    def free_part(self, device: _Device) -> int:
        """What no pod holds of a device, in thousandths."""
        kind, card = device
        return self._types[kind].free_part(card)

    def free_parts(self, devices: _Devices) -> npt.NDArray[np.int64]:
        """See `SharedDevices`."""
        kind, cards = devices
        return self._types[kind].free_parts(cards)

    def fitting(self, requests: Sequence[Requests | None]) -> Callable[[_Device], npt.NDArray[np.bool_]]:
        """See `SharedDevices`."""
        checks = [kind.fitting(_of_kind(requests, index)) for index, kind in enumerate(self._types)]
        return lambda device: checks[device[0]](device[1])

    def fitting_many(self, requests: Sequence[Requests | None]) -> Callable[[_Devices], npt.NDArray[np.bool_]]:
        """See `SharedDevices`."""
        checks: dict[int, Callable[[CardBatch], npt.NDArray[np.bool_]]] = {}

        def fitting(devices: _Devices) -> npt.NDArray[np.bool_]:
            index, cards = devices
            if index not in checks:  # only kinds with a chooser have cards in columns
                checks[index] = self._types[index].fitting_cards(_of_kind(requests, index))
            return checks[index](cards)

        return fitting

    def number(self, request: Requests) -> int:
        pairs = zip(self._types, request, strict=True)
        return sum(kind.number(wanted) for kind, wanted in pairs if wanted is not None)

    def model(self, device: _Device) -> str:
        return device[1].model.type


def _of_kind(requests: Sequence[Requests | None], index: int) -> list[Any | None]:
    """What requests want of one kind of devices."""
    return [None if request is None else request[index] for request in requests]
