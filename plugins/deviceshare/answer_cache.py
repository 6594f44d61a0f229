"""The answers to all requests for devices, within a limit of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.plugins.deviceshare.device_states import RequestAnswers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.deviceshare.device_rows import DeviceRows
    from capcard_sched.plugins.deviceshare.device_states import Requests
    from capcard_sched.plugins.deviceshare.device_type import DeviceType
    from capcard_sched.plugins.deviceshare.shared_card import CardStates

#: Answers that are kept before those about states without nodes are dropped.
_MOST_ANSWERS = 131_072
#: Requests after which the answers are counted in the middle of a session.
_COUNTED_EVERY = 64


class AnswerCache:
    """The answers to all classes of pods. They are worked out again when needed, so that any of them may be dropped."""

    def __init__(self, types: Sequence[DeviceType], rows: DeviceRows, cards: CardStates) -> None:
        self._types = types
        self._rows = rows
        self._cards = cards
        #: By class, None for pods that ask for nothing; by requests.
        self._by_class: dict[TaskClass, RequestAnswers | None] = {}
        self._by_requests: dict[Requests, RequestAnswers] = {}
        #: How many answers are kept at least.
        self.least = _MOST_ANSWERS
        self._most = 0

    def __len__(self) -> int:
        return len(self._by_class) + self._cards.answers + sum(map(len, self._by_requests.values()))

    def of(self, cls: TaskClass) -> RequestAnswers | None:
        """The answers to a class of pods; None when it asks for no devices."""
        if not cls.device_containers:
            return None
        if cls not in self._by_class:
            requests = tuple(kind.request_of(cls) for kind in self._types)
            asks = any(request is not None for request in requests)
            self._by_class[cls] = self.of_requests(requests) if asks else None
        found = self._by_class[cls]
        if found is not None:
            found.is_used = True
        return found

    def of_requests(self, requests: Requests) -> RequestAnswers:
        """The answers to requests, one per kind of devices."""
        found = self._by_requests.get(requests)
        if found is None:
            if len(self._by_requests) % _COUNTED_EVERY == 0:
                self.shrink()
            found = self._by_requests[requests] = RequestAnswers(self._types, requests, self._rows.states)
        return found

    def clear(self) -> None:
        """Drop everything: requests or states have another meaning."""
        self._by_class.clear()
        self._by_requests.clear()

    def shrink(self) -> None:
        """Once they are many, drop answers about states without nodes, and requests without a question since then.

        O(requests) while they are few.
        """
        if len(self) <= max(self.least, self._most):
            return
        numbers = set(self._rows.numbers.tolist())
        self._by_class.clear()
        self._by_requests = {requests: found for requests, found in self._by_requests.items() if found.is_used}
        for found in self._by_requests.values():
            found.keep(numbers)
        self._cards.drop_answers()
        self._most = 2 * len(self)
