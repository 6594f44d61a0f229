"""Card-time of pods that held cards without using them, as a source of utilization measured it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: Namespace and name of a pod.
PodName: TypeAlias = tuple[str, str]
#: Measures the pods of periods (Unix milliseconds). Raises UnmeasuredError.
Meter: TypeAlias = "Callable[[Sequence[tuple[int, int]]], Sequence[Mapping[PodName, PodActivity]]]"


class UnmeasuredError(Exception):
    """A source of utilization gives no figures; the text has the reason."""


class PodActivity(NamedTuple):
    """Card-time of one pod in a period, in millionths of a card-second: measured, and without any use."""

    measured: int
    unused: int


class MeasuredRow(Protocol):
    """A group of a report, with its sums."""

    used: int
    measured: int | None
    unused: int | None


class HeldPart(NamedTuple):
    """Card-time of one charge in a period."""

    row: MeasuredRow
    #: The index of the period.
    period: int
    pod: PodName
    amount: int


def add_unused(
    rows: Iterable[MeasuredRow], parts: Iterable[HeldPart], measured: Sequence[Mapping[PodName, PodActivity]]
) -> None:
    """Set the measured and unused time of groups: None as unused for a group of which nothing is measured.

    Charges of one pod name, such as those of a restarted pod, share its time in proportion to theirs.
    """
    rows = list(rows)
    for row in rows:
        row.measured = row.unused = 0
    pods: defaultdict[tuple[int, PodName], list[HeldPart]] = defaultdict(list)
    for part in parts:
        pods[part.period, part.pod].append(part)
    for (period, pod), held in pods.items():
        found, total = measured[period].get(pod), sum(part.amount for part in held)
        if found is None or not total:
            continue
        known = min(found.measured, total)
        unused = min(found.unused, known)
        for part in held:
            part.row.measured = (part.row.measured or 0) + known * part.amount // total
            part.row.unused = (part.row.unused or 0) + unused * part.amount // total
    for row in rows:
        if row.used and not row.measured:
            row.unused = None


def coverage_note(rows: Iterable[MeasuredRow]) -> str:
    """How much of the time is not measured, in card-hours with two decimals; "" where nothing is missing."""
    rows = list(rows)
    used = sum(row.used for row in rows)
    missing = used - sum(row.measured or 0 for row in rows)
    return f"{_hours(missing)} of {_hours(used)} card-hours are not measured: UNUSED leaves them out" if missing else ""


def _hours(amount: int) -> str:
    return f"{amount / 3_600_000_000:.2f}"
