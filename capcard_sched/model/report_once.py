"""Deduplication of reports: events, warnings and log lines about a subject that are made once while they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Hashable, Iterator

S = TypeVar("S", bound="Hashable")
R = TypeVar("R", bound="Hashable")


class ReportOnce(Generic[S, R]):
    """The current reports of each subject. A report that ends and returns is new again.

    Subjects without reports take no memory: they are dropped by `update` without reports, by `forget` and by `keep`.
    """

    __slots__ = ("_current",)

    def __init__(self) -> None:
        self._current: dict[S, frozenset[R]] = {}

    def __len__(self) -> int:
        return len(self._current)

    def __iter__(self) -> Iterator[S]:
        return iter(self._current)

    def update(self, subject: S, reports: Collection[R]) -> list[R]:
        """Replaces the reports of a subject; returns the new ones, in order."""
        known = self._current.get(subject)
        if reports:
            self._current[subject] = frozenset(reports)
        elif known is not None:
            del self._current[subject]
        return list(reports) if known is None else [report for report in reports if report not in known]

    def forget(self, subject: S) -> bool:
        """Drops the reports of a subject; whether it had any."""
        return self._current.pop(subject, None) is not None

    def keep(self, subjects: Container[S]) -> None:
        """Drops the reports of all other subjects. O(subjects with reports)."""
        for gone in [subject for subject in self._current if subject not in subjects]:
            del self._current[gone]
