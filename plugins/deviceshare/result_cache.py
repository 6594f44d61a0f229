"""The results to all requests for devices, within a limit of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.plugins.deviceshare.device_states import RequestResults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.deviceshare.device_rows import DeviceRows
    from capcard_sched.plugins.deviceshare.device_states import Requests
    from capcard_sched.plugins.deviceshare.device_type import DeviceType
    from capcard_sched.plugins.deviceshare.shared_card import CardStates

#: Results that are kept before those for states without nodes are dropped.
_MOST_RESULTS = 131_072
#: Requests after which the results are counted in the middle of a session.
_COUNTED_EVERY = 64


class DeviceResultCache:
    """The results to all classes of pods. They are computed again when needed, so that any of them may be dropped."""

    def __init__(self, types: Sequence[DeviceType], rows: DeviceRows, cards: CardStates) -> None:
        self._types = types
        self._rows = rows
        self._cards = cards
        #: By class, None for pods that request nothing; by requests.
        self._by_class: dict[TaskClass, RequestResults | None] = {}
        self._by_requests: dict[Requests, RequestResults] = {}
        #: How many results are kept at least.
        self.least = _MOST_RESULTS
        self._most = 0

    def __len__(self) -> int:
        return len(self._by_class) + self._cards.results + sum(map(len, self._by_requests.values()))

    def of(self, cls: TaskClass) -> RequestResults | None:
        """The results to a class of pods; None when it requests no devices."""
        if not cls.device_containers:
            return None
        found = self._by_class.get(cls)
        if found is None and cls not in self._by_class:
            requests = tuple(kind.request_of(cls) for kind in self._types)
            asks = any(request is not None for request in requests)
            found = self._by_class[cls] = self.of_requests(requests) if asks else None
        if found is not None:
            found.is_used = True
        return found

    def of_requests(self, requests: Requests) -> RequestResults:
        """The results to requests, one per kind of devices."""
        found = self._by_requests.get(requests)
        if found is None:
            if len(self._by_requests) % _COUNTED_EVERY == 0:
                self.shrink()
            found = self._by_requests[requests] = RequestResults(self._types, requests, self._rows.states)
        return found

    def clear(self) -> None:
        """Drop everything: requests or states have another meaning."""
        self._by_class.clear()
        self._by_requests.clear()

    def shrink(self) -> None:
        """Once they are many, drop results for states without nodes, and requests that were not used since then.

        O(requests) while they are few.
        """
        if len(self) <= max(self.least, self._most):
            return
        numbers = set(self._rows.numbers.tolist())
        self._by_class.clear()
        self._by_requests = {requests: found for requests, found in self._by_requests.items() if found.is_used}
        for found in self._by_requests.values():
            found.keep(numbers)
        self._cards.drop_results()
        self._most = 2 * len(self)
