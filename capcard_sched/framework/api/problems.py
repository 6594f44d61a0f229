"""The problems of a scheduler-conf: one record each, all reported together."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Keys of maps and positions in lists, from the top of the document.
Path: TypeAlias = tuple[str | int, ...]
Severity: TypeAlias = Literal["error", "warning"]

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST_SHOWN = 60


class ConfProblem(msgspec.Struct, frozen=True):
    """One problem of a scheduler-conf.

    An error rejects the whole document; with a warning it loads, and the message includes the value used instead.
    """

    severity: Severity
    #: `tiers[1].plugins[0].arguments.nodeOrderWeight`; "" is the document itself.
    path: str
    message: str
    #: The probably intended spelling.
    hint: str = ""
    #: The accepted form, unless the message contains it.
    accepted: str = ""
    #: Counted from 1; 0 when the problem has no line of its own.
    line: int = 0

    def render(self) -> str:
        """One line for logs and terminals, without the severity."""
        place = self.path or "scheduler-conf"
        if self.line:
            place += f" (line {self.line})"
        parts = [f"{place}: {self.message}"]
        if self.hint:
            parts.append(self.hint)
        if self.accepted:
            parts.append(f"accepted: {self.accepted}")
        return "; ".join(parts)


class ConfProblems:
    """The problems of one document, in the order found."""

    def __init__(self, lines: Mapping[Path, int] | None = None) -> None:
        """`lines` holds the line of each path; a path without one gets the line of the nearest parent."""
        self.found: list[ConfProblem] = []
        self._lines = lines or {}

    def error(self, path: Path, message: str, *, hint: str = "", accepted: str = "") -> None:
        """Records an error: the document is rejected."""
        self._add("error", path, message, hint, accepted)

    def warning(self, path: Path, message: str, *, hint: str = "", accepted: str = "") -> None:
        """Records a warning: the document loads."""
        self._add("warning", path, message, hint, accepted)

    @property
    def rejected(self) -> bool:
        """Whether some problem is an error."""
        return any(problem.severity == "error" for problem in self.found)

    def _add(self, severity: Severity, path: Path, message: str, hint: str, accepted: str) -> None:
        line = next((self._lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self._lines), 0)
        self.found.append(ConfProblem(severity, path_text(path), message, hint, accepted, line))


def path_text(path: Path) -> str:
    """`("tiers", 1, "arguments", "binpack.cpu")` as `tiers[1].arguments["binpack.cpu"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f'["{shown_text(step)}"]'
    return text


def shown_text(text: str) -> str:
    """Text from outside as messages quote it: short, on one line."""
    text = text.encode("unicode_escape", "replace").decode("ascii") if not text.isprintable() else text
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def shown(value: object) -> str:
    """A value as messages show it: short, with its type."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'the string "{shown_text(value)}"'
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of more than 60 digits"
    return f"the number {value}"


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean "<the closest known word>"?`, or "" when none is close. Mostly ignores case."""
    by_lower = {candidate.lower(): candidate for candidate in sorted(known, reverse=True)}
    # Long words carry no information here, and matching takes quadratic time.
    if not word or len(word) > 200:
        return ""
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.7)
    return f'did you mean "{by_lower[close[0]]}"?' if close else ""
