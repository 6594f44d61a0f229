"""Parsers for the flag values of `capcard-sched run`, one per kind of value, with the spellings of Go programs.

A parser raises ValueError with the accepted form; the command line adds the name of the flag.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec

from capcard_sched.model.quoting import quoted
from capcard_sched.model.timestamps import DurationError, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cyclopts import Token

_Value = TypeVar("_Value")
_Reader: TypeAlias = "Callable[[Any, Sequence[Token]], _Value]"

#: An IPv6 address in brackets or any other host, and a port.
_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]\s]*)):([0-9]{1,5})")
_MOST_PORT: Final = 65535


class AddressFlag(msgspec.Struct, frozen=True):
    """Listen address of a server."""

    #: "" is every interface.
    host: str
    #: 0 lets the system choose.
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class LabelMatch(msgspec.Struct, frozen=True):
    """One entry of `--node-selector`: nodes with this label and value."""

    label: str
    value: str

    def __str__(self) -> str:
        return f"{self.label}:{self.value}"


def _one(read: Callable[[str], _Value]) -> _Reader[_Value]:
    """A parser for a flag with one value."""

    def convert(_: Any, tokens: Sequence[Token]) -> _Value:
        return read(tokens[-1].value)

    return convert


def _several(read: Callable[[str], _Value], *, split: bool) -> _Reader[tuple[_Value, ...]]:
    """A parser for a repeatable flag, comma-separated if `split`; duplicates are dropped."""

    def convert(_: Any, tokens: Sequence[Token]) -> tuple[_Value, ...]:
        parts = [part for token in tokens for part in (token.value.split(",") if split else [token.value])]
        return tuple(dict.fromkeys(read(part.strip()) for part in parts if part.strip() or not split))

    return convert


def _read_duration(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except DurationError as error:
        raise ValueError(str(error)) from None
    if seconds < 0:
        raise ValueError(f"{quoted(text)} is negative; accepted: a duration such as 500ms, 1s or 1m30s")
    return seconds


def _read_period(text: str) -> float:
    seconds = _read_duration(text)
    if not seconds:
        raise ValueError(f"{quoted(text)}: must be > 0; accepted: a duration such as 500ms, 1s or 1m30s")
    return seconds


def read_address(text: str) -> AddressFlag:
    """An address `host:port`. Raises ValueError."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[3]) > _MOST_PORT:
        raise ValueError(
            f"{quoted(text)} is not an address; accepted: host:port such as :8080, 127.0.0.1:8080 or [::1]:8080"
        )
    return AddressFlag(match[1] or match[2] or "", int(match[3]))


def _read_match(text: str) -> LabelMatch:
    label, colon, value = text.partition(":")
    if not colon or not label.strip():
        raise ValueError(f"{quoted(text)} is not a selector; accepted: label:value such as zone:a, several with commas")
    return LabelMatch(label.strip(), value.strip())


def _read_name(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty; accepted: a name")
    return text.strip()


def whole(least: int, most: int) -> _Reader[int]:
    """A whole number within both bounds."""

    def read(text: str) -> int:
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) < 12 and least <= int(text) <= most:
            return int(text)
        raise ValueError(f"{quoted(text)} is not accepted; accepted: a whole number from {least} to {most}")

    return _one(read)


def _read_rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e9:
        raise ValueError(f"{quoted(text)} is not a rate; accepted: a number above 0 and below 1e9, such as 2000")
    return rate


#: Seconds; `period` must be > 0.
duration: Final = _one(_read_duration)
period: Final = _one(_read_period)
address: Final = _one(read_address)
#: Requests per second.
rate: Final = _one(_read_rate)
name: Final = _one(_read_name)
names: Final = _several(_read_name, split=False)
#: Repeatable and comma-separated.
words: Final = _several(_read_name, split=True)
matches: Final = _several(_read_match, split=True)
#: "" is None, as without the flag.
path: Final = _one(lambda text: Path(text) if text else None)


def show_list(items: Sequence[object]) -> str:
    """For `--help`."""
    return ", ".join(map(str, items)) or "none"
