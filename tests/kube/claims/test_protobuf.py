"""Objects are changed in protobuf without a reading of what they contain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.kube.protobuf import ProtobufError, changed, has, message, within, without

#: Fields 1 to 300 with texts up to sizes whose lengths need two bytes.
MESSAGES = st.lists(st.tuples(st.integers(1, 300), st.binary(max_size=200)), max_size=6)


def encoded(fields: list[tuple[int, bytes]]) -> bytes:
    return b"".join([message(number, value) for number, value in fields])


def envelope(content: bytes) -> bytes:
    return b"k8s\x00" + message(1, message(1, "v1") + message(2, "Pod")) + message(2, content)


def test_bytes_are_those_of_the_format() -> None:
    """The example of the format's description, and a length of two bytes."""
    assert message(2, "testing") == b"\x12\x07testing"
    assert message(16, "x" * 300) == b"\x82\x01\xac\x02" + b"x" * 300
    assert message(1, "a", "b") == b"\x0a\x01a\x0a\x01b"


@given(MESSAGES, MESSAGES)
def test_a_change_is_appended_in_the_envelope(fields: list[tuple[int, bytes]], more: list[tuple[int, bytes]]) -> None:
    body = encoded(fields)
    assert changed(envelope(body), lambda found: found + encoded(more)) == envelope(body + encoded(more))


@given(MESSAGES, st.integers(1, 4), st.binary(max_size=3))
def test_values_of_a_field_are_left_out(fields: list[tuple[int, bytes]], number: int, gone: bytes) -> None:
    left = [each for each in fields if each != (number, gone)]
    assert without(encoded(fields), number, gone.__eq__) == encoded(left)
    upper = [(number, value + b"!") if each == number else (each, value) for each, value in fields]
    assert within(encoded(fields), number, lambda value: value + b"!") == encoded(upper)


def test_numbers_are_passed_on() -> None:
    """Fields of other types: a number of two bytes, 64 bits, 32 bits."""
    numbers = b"\x08\x96\x01" + b"\x11" + bytes(8) + b"\x1d" + bytes(4)
    assert without(numbers + message(4, "x"), 4, lambda value: value == b"x") == numbers
    assert has(numbers + message(4, "x"), 4, "x")
    assert not has(numbers + message(4, "x"), 3, "x")


@pytest.mark.parametrize(
    "body",
    [
        b'{"kind":"Pod"}',
        b"k8s\x00\x12\x05ab",
        b"k8s\x00\x12",
        b"k8s\x00\x80",
        b"k8s\x00\x0b",
        b"k8s\x00\x19\x00",
    ],
    ids=["JSON", "text", "length", "tag", "type", "number"],
)
def test_other_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(ProtobufError):
        changed(body, lambda found: found)
