"""All output of the commands: text from objects never reaches a terminal as it is."""

from __future__ import annotations

import sys

from capcard_sched.model.quoting import escaped, escaped_json


def put(text: str, *, end: str = "\n", flush: bool = False) -> None:
    """Print text of one or more lines on standard output, with control characters escaped."""
    print(escaped(text, lines=True), end=end, flush=flush)


def put_json(text: str, *, end: str = "\n") -> None:
    """Print a JSON document on standard output; its values do not change."""
    print(escaped_json(text), end=end)


def put_error(text: str, *, flush: bool = False) -> None:
    """Print one line on standard error: line breaks are escaped, too."""
    print(escaped(text), file=sys.stderr, flush=flush)
