"""Cards in use over time against sums by the second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.ledger import schema
from capcard_sched.ledger.charge_sums import charges_between
from capcard_sched.ledger.database import LedgerDatabase
from capcard_sched.ledger.usage_report import intervals_of
from capcard_sched.ledger.usage_series import usage_series

#: Queue, thousandths of a card, first and last second; None while it lasts.
_charges = st.lists(
    st.tuples(
        st.sampled_from(["q", "r"]),
        st.sampled_from([500, 1000, 4000]),
        st.integers(0, 900),
        st.none() | st.integers(1, 900),
    ),
    max_size=6,
)


@pytest.fixture(scope="module")
def new_database(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], LedgerDatabase]:
    folder: Path = tmp_path_factory.mktemp("series")
    number = count()
    return lambda: LedgerDatabase(str(folder / f"{next(number)}.db"), create=True)


@given(charges=_charges, since=st.integers(0, 400), seconds=st.integers(120, 1200))
def test_each_part_has_the_mean_of_its_seconds(
    new_database: Callable[[], LedgerDatabase],
    charges: list[tuple[str, int, int, int | None]],
    since: int,
    seconds: int,
) -> None:
    until, database, held = since + seconds, new_database(), Counter[tuple[str, int]]()
    for number, (queue, thousandths, began, lasted) in enumerate(charges):
        ended = None if lasted is None else began + lasted
        _add(database, f"p{number}", queue, thousandths, began, ended)
        for second in range(max(began, since), until if ended is None else min(ended, until)):
            held[queue, second] += thousandths
    begin, end = since * 1000, until * 1000
    intervals = intervals_of(database.read(charges_between(begin, end)), end)
    found = {one.queue: one for one in usage_series(intervals, begin, end)}
    for queue in ("q", "r"):
        total = sum(amount for (name, _), amount in held.items() if name == queue)
        assert (queue in found) or not total
        if queue not in found:
            continue
        one = found[queue]
        assert one.length * len(one.means) == pytest.approx(seconds)
        assert one.length * sum(one.means) == pytest.approx(total / 1000, abs=0.001 * seconds)
        for part, mean in enumerate(one.means):
            first, last = since + part * one.length, since + (part + 1) * one.length
            expected = sum(
                held[queue, second] * max(0.0, min(last, second + 1) - max(first, second))
                for second in range(int(first), int(last) + 1)
            )
            assert mean == pytest.approx(expected / one.length / 1000, abs=0.002)
    database.close()


def _add(database: LedgerDatabase, pod: str, queue: str, thousandths: int, began: int, ended: int | None) -> None:
    values: dict[str, object] = dict.fromkeys(schema.CHARGE.columns.keys(), "")
    row = values | {"pod_uid": pod, "pod": pod, "queue": queue, "card": "A", "thousandths": thousandths}
    row |= {"began": began * 1000, "ended": None if ended is None else ended * 1000, "life": 1, "gap": False}
    with database.engine.begin() as connection:
        connection.execute(schema.CHARGE.insert().values(row))
