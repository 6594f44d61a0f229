"""Files of vectors: reading them with the places of what they expect, and writing that anew."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

FOLDER: Final = Path(__file__).parent
WIDTH: Final = 120
#: Keys of a vector, and of a step of it.
STEP_KEYS: Final = {"reload", "do", "after", "sessions", "try", "ask", "expect"}
VECTOR_KEYS: Final = {"name", "conf", "run", "provisioning", "settle", "given", "steps", "cases"} | STEP_KEYS
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./<+(][^,\[\]{}#:'\"\n&!|`]*(?::[^,\[\]{}#:'\"\n\s&!|`]+)*")


class Span(NamedTuple):
    """Where a value stands in the text of its file: [start, end), and its column."""

    start: int
    end: int
    column: int


class Block(dict[str, Any]):
    """A mapping that knows where its values stand."""

    spans: dict[str, Span]


class _Loader(yaml.SafeLoader):
    pass


def _block(loader: _Loader, node: yaml.MappingNode) -> Block:
    block = Block({str(key): found for key, found in loader.construct_mapping(node, deep=True).items()})
    block.spans = {
        key.value: Span(value.start_mark.index, value.end_mark.index, value.start_mark.column)
        for key, value in node.value
    }
    return block


_Loader.add_constructor("tag:yaml.org,2002:map", _block)


class Vector(NamedTuple):
    """A leaf of a file with what it has from the blocks around it."""

    path: Path
    name: str
    conf: Any
    run: bool
    #: Class of the ProvisioningRequests of gangs; "" for none.
    provisioning: str
    #: Whether a step runs sessions until nothing changes unless it has a number of them.
    settle: bool
    #: Statements, outermost first.
    given: tuple[str, ...]
    steps: list[Block]


def read(path: Path) -> list[Vector]:
    """The vectors of a file in order; AssertionError names a key that no vector has."""
    found: list[Vector] = []
    for block in yaml.load(path.read_text(), Loader=_Loader):
        found += _leaves(path, block, Vector(path, "", None, False, "", False, (), []))
    return found


def _leaves(path: Path, block: Block, outer: Vector) -> Iterator[Vector]:
    assert set(block) <= VECTOR_KEYS, f"{path.name}: unknown keys {sorted(set(block) - VECTOR_KEYS)}"
    name = ": ".join(part for part in (outer.name, block.get("name", "")) if part)
    own = [block] if STEP_KEYS & set(block) else []
    for step in block.get("steps", ()):
        assert set(step) <= STEP_KEYS, f"{path.name}, {name}: unknown keys {sorted(set(step) - STEP_KEYS)}"
    vector = Vector(
        path,
        name,
        block.get("conf", outer.conf),
        block.get("run", outer.run),
        block.get("provisioning", outer.provisioning),
        block.get("settle", outer.settle),
        (*outer.given, *([block["given"]] if "given" in block else [])),
        [*outer.steps, *own, *block.get("steps", ())],
    )
    if "cases" not in block:
        yield vector
    for case in block.get("cases", ()):
        yield from _leaves(path, case, vector)


def rewritten(text: str, changes: dict[Span, Any]) -> str:
    """The text with new values at these places; all else stays."""
    for span in sorted(changes, reverse=True):
        old = text[span.start : span.end]
        trailing = old[len(old.rstrip()) :]
        text = (
            text[: span.start]
            + " " * (text[span.start - 1] == ":")
            + flow(changes[span], span.column)
            + trailing
            + text[span.end :]
        )
    return text


def flow(value: Any, column: int) -> str:
    """A value in flow style that starts at a column; it continues in the next line before `WIDTH`."""
    words = _words(value)
    lines, line = [], ""
    limit = WIDTH - column - 2
    for word in words:
        if line and len(line) + len(word) > limit:
            lines.append(line.rstrip())
            line = " "
            limit = WIDTH - column - 2
        line += word
    lines.append(line.rstrip())
    return ("\n" + " " * column).join(lines)


def _words(value: Any) -> list[str]:
    """Parts between which a line may end."""
    if isinstance(value, dict):
        inner = [[f"{scalar(key)}: {first}", *rest] for key, item in value.items() for first, *rest in [_words(item)]]
        return _joined("{", inner, "}")
    if isinstance(value, list):
        return _joined("[", [_words(item) for item in value], "]")
    return [scalar(value)]


def _joined(opening: str, inner: list[list[str]], closing: str) -> list[str]:
    words = [word + ", " * (index == len(part) - 1) for part in inner for index, word in enumerate(part)]
    if not words:
        return [opening + closing]
    words[0] = opening + words[0]
    words[-1] = words[-1].removesuffix(", ") + closing
    return words


def scalar(value: Any) -> str:
    """A scalar of flow style."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, int | float):
        return "null" if value is None else str(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and text == text.strip() and isinstance(yaml.safe_load(text), str):
        return text
    return "'" + text.replace("'", "''") + "'"
