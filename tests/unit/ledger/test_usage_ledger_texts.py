"""Texts that tenants choose: NUL and thousands of characters stop neither records nor daily sums."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from capcard_sched.ledger.usage_ledger import open_ledger
from capcard_sched.ledger.usage_report import UsageQuery
from capcard_sched.model.annotations import CARD_ASSIGNED, LEDGER_USER
from capcard_sched.model.deltas import Delta, ObjectGone
from tests.unit.ledger.test_ledger_histories import DAY0, HOUR, group, node, pod

DAY = 24 * HOUR
#: PostgreSQL stores no NUL, and no index entry of more than 2,704 bytes that do not compress.
LONG = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(10_000))


def _hostile(text: str) -> list[Delta]:
    notes = {LEDGER_USER: text, CARD_ASSIGNED: text, "scheduling.k8s.io/group-name": "g"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": text, "uid": "u", "controller": True}
    return [group(queue=text), pod("evil", at=DAY0, annotations=notes, ownerReferences=[owner])]


@pytest.mark.parametrize("text", ["a\0b", LONG, f"{LONG}\0", "\0"], ids=["nul", "long", "long with nul", "only nul"])
def test_a_text_of_a_tenant_stops_neither_records_nor_daily_sums(new_url: Callable[[], str], text: str) -> None:
    with open_ledger(new_url()) as ledger:
        ledger.start("a", "live", DAY0)
        ledger.feed(DAY0, [node(), *_hostile(text), pod("good", at=DAY0, group="")])
        ledger.feed(DAY0 + HOUR, [ObjectGone("Pod", "ns", name, f"uid-{name}") for name in ("evil", "good")])
        ledger.feed(DAY0 + 3 * DAY, [node(7)])
        ledger.flush()
        query = UsageQuery(DAY0, DAY0 + DAY, ("queue", "card", "namespace", "user"))
        before = ledger.usage(query)
        assert [row.used for row in before.rows] == [HOUR * 10**6, HOUR * 10**6]
        assert ledger.keep(DAY) == 2
        after = ledger.usage(query)
        assert [(row.group, row.used) for row in after.rows] == [(row.group, row.used) for row in before.rows]
        sizes = [len(part.encode()) for row in before.rows for part in row.group]
        assert max(sizes) <= 768


def test_a_source_that_is_read_again_adds_nothing(new_url: Callable[[], str]) -> None:
    """The key of a row is the stored text."""
    with open_ledger(new_url()) as ledger:
        for _ in range(2):
            ledger.start("a", "recording", DAY0)
            ledger.feed(DAY0, [node(), *_hostile(LONG)])
            ledger.feed(DAY0 + HOUR, [node(7)])
            ledger.flush()
        assert [row.used for row in ledger.usage(UsageQuery(DAY0, DAY0 + HOUR, ("user",))).rows] == [HOUR * 10**6]
