"""Regular expressions in RE2 syntax, matched in linear time.

Tenants write the expressions: a matcher that backtracks, such as that of `re`, takes exponential time for some. A
pattern becomes an automaton whose states are followed side by side, in order of preference, so that the first thread
that matches gives the leftmost match that Perl would find.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.cel.regex_syntax import WORD, RegexParser, State
from capcard_sched.model.text_cache import text_cache

if TYPE_CHECKING:
    from collections.abc import Callable


class Pattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        """Raises EvaluationError."""
        self._states: list[State] = []
        parser = RegexParser(text, self._states)
        piece = parser.whole()
        self._accept = parser.state(None, [])
        for state, place in piece.exits:
            self._states[state].out[place] = self._accept
        self._start = piece.start

    def find(self, text: str, begin: int, charge: Callable[[int], None]) -> tuple[int, int] | None:
        """Start and end of the leftmost match from `begin` on; None without one.

        Calls `charge` with the number of steps: at most states x characters.
        """
        threads: list[tuple[int, int]] = []
        best: tuple[int, int] | None = None
        for place in range(begin, len(text) + 1):
            seen: set[int] = set()
            entered: list[tuple[int, int]] = []
            for state, start in [*threads, *([(self._start, place)] if best is None else [])]:
                self._enter(state, start, text, place, seen, entered)
            charge(len(seen) + 1)
            threads = []
            char = text[place] if place < len(text) else ""
            for state, start in entered:
                if state == self._accept:
                    best = start, place
                    break  # the later threads are less preferred
                chars = self._states[state].chars
                if char and chars is not None and chars(char):
                    threads.append((self._states[state].out[0], start))
            if not threads and best is not None:
                break
        return best

    def _enter(
        self, state: int, start: int, text: str, place: int, seen: set[int], entered: list[tuple[int, int]]
    ) -> None:
        """Follows a state to those that consume a character or accept, in order of preference."""
        stack = [state]
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            known = self._states[current]
            if known.chars is not None or current == self._accept:
                entered.append((current, start))
            elif not known.assertion or _holds(known.assertion, text, place):
                stack += reversed(known.out)


def _holds(assertion: str, text: str, place: int) -> bool:
    if assertion == "A":
        return place == 0
    if assertion == "z":
        return place == len(text)
    if assertion == "^":
        return place == 0 or text[place - 1] == "\n"
    if assertion == "$":
        return place == len(text) or text[place] == "\n"
    before = place > 0 and text[place - 1] in WORD
    after = place < len(text) and text[place] in WORD
    return (before != after) == (assertion == "b")


# Computed 12 us, kept 0.5 (benchmarks/caches.py).
@text_cache(256, longer=32)
def compiled(text: str) -> Pattern:
    """The pattern of a text. Raises EvaluationError."""
    return Pattern(text)
