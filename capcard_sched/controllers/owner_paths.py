"""Paths, conditions, names and counts of the rules of `ownerGroups`, read from objects of any shape.

A path has names separated by dots. `[key]` is a name with dots, and `[]` selects each item of a list or each value
of a map: `spec.replicatedJobs[].name`, `metadata.labels[ray.io/cluster]`. What is absent, or of another shape, is None.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from capcard_sched.model.numbers import MAX_INT32, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_STEP: Final = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")
_PATH: Final = re.compile(r"(?:\.?[^.\[\]\s]+|\[[^\]]*\])+")
_PLACE: Final = re.compile(r"\{([^{}]*)\}")
#: Between the items of a count; they are applied from left to right.
OPERATORS: Final = ("*", "-", "min", "max")
#: Items of a list that a path visits: an object of an operator has a few.
_MOST_ITEMS: Final = 1024
_ROOT: Final = "owner."


class RuleScene(NamedTuple):
    """What a rule reads: labels and annotations of a pod, the object of the owner, and a part of it."""

    notes: Mapping[str, str]
    #: None when it cannot be read.
    owner: Any = None
    #: The part of the owner that paths start from; None for the owner itself.
    item: Any = None
    #: The name of that part in its map.
    key: str = ""

    def values(self, path: str) -> Iterator[Any]:
        """The values at a path; those that are absent are left out."""
        start = self.owner if path.startswith(_ROOT) or self.item is None else self.item
        yield from (value for value, _ in visit(start, path.removeprefix(_ROOT)))

    def parts(self, path: str) -> Iterator[RuleScene]:
        """The scenes of the values at a path; this one without a path."""
        if not path:
            yield self
            return
        for value, key in visit(self.owner, path):
            yield self._replace(item=value, key=key)


# Computed 3.6 us, kept 0.03 (benchmarks/caches.py).
@lru_cache(512)
def _steps(path: str) -> tuple[str, ...]:
    """The names of a path; "" for each item."""
    return tuple(match[1] if match[1] is not None else match[2] for match in _STEP.finditer(path))


def is_path(text: str) -> bool:
    return bool(_PATH.fullmatch(text))


def visit(start: Any, path: str) -> Iterator[tuple[Any, str]]:
    """The values at a path, each with the last key of a map that led to it."""
    found: list[tuple[Any, str]] = [(start, "")]
    for step in _steps(path):
        found = [each for value, key in found for each in _step(value, step, key)][:_MOST_ITEMS]
    yield from ((value, key) for value, key in found if value is not None)


def _step(value: Any, step: str, key: str) -> Iterator[tuple[Any, str]]:
    if step and isinstance(value, dict):
        yield value.get(step), key
    elif not step and isinstance(value, dict):
        yield from ((each, str(name)) for name, each in value.items())
    elif not step and isinstance(value, list):
        yield from ((each, key) for each in value)


def holds(scene: RuleScene, wanted: Mapping[str, str], unwanted: Mapping[str, str]) -> bool:
    """Whether all values of `wanted`, and none of `unwanted`, stand at their paths. `*` is any value."""

    def stands(path: str, value: str) -> bool:
        return any(value in ("*", as_text(each)) for each in scene.values(path))

    return all(stands(*entry) for entry in wanted.items()) and not any(stands(*entry) for entry in unwanted.items())


def as_text(value: Any) -> str:
    """A scalar as in YAML, "" for another value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int) else ""


def name_of(scene: RuleScene, template: str) -> str:
    """A template with its places filled; "" when one of them is empty.

    `{a}` is the label or annotation `a` of the pod, or the field `a` of the part of the owner; `{owner:path}` a value
    of the owner; `{key}` the name of the part in its map, in lower case.
    """
    found = []
    for number, part in enumerate(_PLACE.split(template)):
        text = part if number % 2 == 0 else _place(scene, part)
        if number % 2 and not text:
            return ""
        found.append(text)
    return "".join(found)


def places(template: str) -> list[str]:
    """The texts between the braces of a template, in order, each as often as it occurs."""
    return _PLACE.findall(template)


def _place(scene: RuleScene, place: str) -> str:
    if place.startswith("owner:"):
        return next((as_text(value) for value, _ in visit(scene.owner, place.removeprefix("owner:"))), "")
    if scene.item is not None:
        return scene.key.lower() if place == "key" else next(map(as_text, scene.values(place)), "")
    return scene.notes.get(place, "")


def count_of(scene: RuleScene, text: str) -> int | None:
    """The value of a count, from 0 to 2^31-1; None when an item of it is absent.

    Items are numbers, paths and `@key` for a label or annotation of the pod; `a|b` is the first that is present.
    """
    total, operator = 0, ""
    for word in text.split():
        if word in OPERATORS:
            operator = word
            continue
        value = next((found for each in word.split("|") if (found := _number(scene, each)) is not None), None)
        if value is None:
            return None
        if operator == "*":
            total *= value
        elif operator == "-":
            total -= value
        else:
            total = {"min": min, "max": max}[operator](total, value) if operator else value
    return max(0, min(total, MAX_INT32))


def _number(scene: RuleScene, item: str) -> int | None:
    if item.startswith("@"):
        return whole_number(scene.notes.get(item[1:]))
    literal = whole_number(item)
    if literal is not None:
        return literal
    return next((whole_number(as_text(value)) for value in scene.values(item)), None)


def is_count(text: str) -> bool:
    """Whether a text is a count: items and operators in turn."""
    words = text.split()
    items = [item for word in words[::2] for item in word.split("|")]
    known = all((item.startswith("@") and len(item) > 1) or is_path(item) for item in items)
    return len(words) % 2 == 1 and known and all(word in OPERATORS for word in words[1::2])
