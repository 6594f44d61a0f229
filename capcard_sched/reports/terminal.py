"""Terminal width and formatting of resource amounts, shared by all reports."""

from __future__ import annotations

from rich.console import Console

from capcard_sched.model.quantity import is_in_bytes
from capcard_sched.model.resources import PODS

#: Columns: the width when the output is not a terminal; long reasons stay on few lines.
_PLAIN_WIDTH = 160
_MEBI, _GIBI = 2**20, 2**30


def console_for(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal, or of a fixed width without a terminal."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=_PLAIN_WIDTH)


def format_base_amount(resource: str, amount: int) -> str:
    """A base-unit amount of a resource or card: cores, cards and pods as plain numbers, bytes in Gi or Mi."""
    if is_in_bytes(resource):
        size, unit = (_GIBI, "Gi") if not amount % _GIBI else (_MEBI, "Mi")
        return _plain(amount / size) + unit
    return str(amount) if resource == PODS else _plain(amount / 1000)


def format_amount(resource: str, amount: float) -> str:
    """An amount in cores, cards, devices or bytes; bytes in Gi or Mi."""
    return format_base_amount(resource, round(amount if is_in_bytes(resource) or resource == PODS else amount * 1000))


def _plain(number: float) -> str:
    """At most three decimals, never an exponent."""
    return f"{number:.3f}".rstrip("0").rstrip(".")
