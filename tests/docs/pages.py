"""Commands of README.md and docs/*.md, and the output that a page prints below them.

A command stands in a code block: after `$ ` where its output follows, alone on its line otherwise. In an output, a line
of `...` replaces any number of lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
#: What a line with a command begins with.
_PROGRAMS: Final = r"(?:\.venv/bin/)?(?:capcard-sched|docker|export|helm|kind|kubectl|make|promtool|python)(?= )"
_FENCE: Final = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_INDENTED: Final = re.compile(r"(?<=\n\n)((?: {4}.*\n)+)")


@dataclass(frozen=True, slots=True)
class Command:
    """A command, its page, and the printed output; None where the page prints none."""

    page: str
    text: str
    output: str | None = None

    @property
    def id(self) -> str:
        return f"{self.page}: {self.text}"


def pages() -> list[Path]:
    """README and the pages of docs/, decisions excepted: they record what was."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(text: str) -> Iterator[str]:
    """Code blocks that may hold commands, without their indentation; blocks of data have a language."""
    for indent, language, block in _FENCE.findall(text):
        if language in {"", "console", "sh"}:
            yield re.sub(rf"^{indent}", "", block, flags=re.MULTILINE)
    for block in _INDENTED.findall(_FENCE.sub("", text)):
        yield re.sub(r"^ {4}", "", block, flags=re.MULTILINE)


def commands_of(page: Path) -> Iterator[Command]:
    """The commands of a page, in order."""
    name = page.relative_to(ROOT).as_posix()
    for block in blocks(page.read_text("utf-8")):
        joined = re.sub(r"\\\n\s*", "", block)
        if joined.startswith("$ "):
            for part in re.split(r"^\$ ", joined, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                yield Command(name, command, output)
        else:
            for line in joined.splitlines():
                if re.match(_PROGRAMS, line):
                    yield Command(name, re.sub(r"\s+# .*", "", line).strip())


def all_commands() -> list[Command]:
    """The commands of all pages."""
    return [command for page in pages() for command in commands_of(page)]


def inline_commands() -> Iterator[Command]:
    """Commands in the prose and the tables of the pages."""
    for page in pages():
        prose = _FENCE.sub("", page.read_text("utf-8"))
        for text in re.findall(rf"`({_PROGRAMS} [^`]*)`", prose):
            yield Command(page.relative_to(ROOT).as_posix(), text.replace(r"\|", "|"))


def matches(printed: str, output: str) -> bool:
    """Whether an output of a page shows what a command printed."""
    parts = re.split(r"^ *\.\.\.\n", output, flags=re.MULTILINE)
    return re.fullmatch(r"(?:.*\n)*".join(map(re.escape, parts)), printed) is not None
