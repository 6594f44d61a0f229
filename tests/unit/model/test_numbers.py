"""Numbers in texts of users: any text has a bounded cost and never raises."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.controllers.jobs.job_status import member_annotations
from capcard_sched.model import annotations as keys
from capcard_sched.model.card_registration import decode_registration
from capcard_sched.model.cards import parse_card_name, parse_card_quota, parse_card_request
from capcard_sched.model.numbers import MAX_INT32, percentage, whole_number
from capcard_sched.model.pod_devices import decode_devices
from capcard_sched.model.quantity import base_amount, parse_quantity
from capcard_sched.model.strategies import parse_weights
from capcard_sched.model.timestamps import parse_duration, parse_span, parse_time, parse_timestamp
from capcard_sched.model.usage import parse_usage

DIGITS = "9" * 5000
HOSTILE = [
    "", " ", "-", "+1", "-1", "1.5", "1e5000", "NaN", "Infinity", "0x10", "1_000", "٣", "¹", "Ⅷ", "\x00", "\ud800",
    DIGITS, f"-{DIGITS}", f"0.{DIGITS}", f"{DIGITS}m", f"1e{DIGITS}", f"{DIGITS}%", f'{{"A": {DIGITS}}}',
    f'{{"A": 1.{DIGITS}}}', f'{{"A": 1e{DIGITS}}}', "[" * 5000, '{"a":' * 5000, f"2026-01-01T00:00:00.{DIGITS}Z",
    f"{DIGITS}-01-01T00:00:00Z", f"{DIGITS}h", f"1.{DIGITS}s", f"u,{DIGITS},{DIGITS},t,true:", f"u,NV,{DIGITS},1:",
    f"cpu={DIGITS},memory=1",
]  # fmt: skip
#: Readers of text in objects. They reject by a ValueError of their own or accept; the interpreter's limit is no reason.
READERS: dict[str, Callable[[str], object]] = {
    "whole_number": whole_number,
    "percentage": percentage,
    "card name": parse_card_name,
    "card quota": parse_card_quota,
    "card request": parse_card_request,
    "registration": decode_registration,
    "devices": decode_devices,
    "quantity": parse_quantity,
    "amount": lambda text: base_amount("cpu", text),
    "weights": parse_weights,
    "duration": parse_duration,
    "span": parse_span,
    "time": parse_time,
    "timestamp": parse_timestamp,
    "usage": parse_usage,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:20]))
def test_a_hostile_text_is_read_or_rejected(read: Callable[[str], object], text: str) -> None:
    errors: list[ValueError] = []
    try:
        read(text)
    except ValueError as error:
        errors.append(error)
    assert all(type(each) is not ValueError for each in errors), errors


@given(st.text() | st.text("0123456789", max_size=30))
def test_a_whole_number_is_what_int_reads_within_the_bounds(text: str) -> None:
    expected = int(text) if text.isascii() and text.isdigit() and int(text) <= MAX_INT32 else None
    assert whole_number(text) == expected


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:20]))
def test_the_records_of_a_pod_are_read_whatever_they_are(text: str) -> None:
    notes = dict.fromkeys((keys.TASK_INDEX, keys.JOB_VERSION, keys.JOB_RETRY_COUNT, keys.TASK_SPEC), text)
    found = member_annotations({"metadata": {"name": f"p-{text}", "annotations": notes, "labels": notes}})
    assert -1 <= found.ordinal <= MAX_INT32
    assert 0 <= found.version <= MAX_INT32
    assert 0 <= found.retries <= MAX_INT32
