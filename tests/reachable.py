"""What an object holds: for tests of what stays behind when objects of a cluster are gone."""

from __future__ import annotations

import gc
import types
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

_SKIPPED: Final = (type, types.ModuleType, types.BuiltinFunctionType, types.CodeType, int, float)


def _attributes(item: object) -> Iterator[tuple[str, object]]:
    names = [*getattr(item, "__struct_fields__", ()), *getattr(item, "__dict__", ())]
    for cls in type(item).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    for name in dict.fromkeys(names):
        private = f"_{type(item).__name__.lstrip('_')}{name}" if name.startswith("__") else name
        if hasattr(item, private):
            yield f".{name}", getattr(item, private)


def _parts(item: object) -> Iterator[tuple[str, object]]:
    if isinstance(item, Mapping):
        for key, value in item.items():
            yield "{key}", key
            yield "{}", value
    elif isinstance(item, list | tuple | set | frozenset) or type(item).__name__ == "deque":
        for each in item:  # type: ignore[attr-defined]
            yield "[]", each
    yield from _attributes(item)
    if isinstance(item, types.FunctionType | types.MethodType | types.GeneratorType):
        for each in gc.get_referents(item):
            if not isinstance(each, dict):  # the globals of a module
                yield f"<{type(item).__name__}>", each


def reachable(root: object) -> Iterator[tuple[str, object]]:
    """The objects that are reachable from an object, with the path of attributes to them; no modules and numbers."""
    seen: set[int] = set()
    waiting = deque([("", root)])
    keep = []
    while waiting:
        path, item = waiting.popleft()
        if id(item) in seen or isinstance(item, _SKIPPED):
            continue
        seen.add(id(item))
        keep.append(item)  # ids stay unique
        yield path, item
        if not isinstance(item, str | bytes):
            waiting.extend((path + part, each) for part, each in _parts(item))


def sizes(root: object) -> Counter[str]:
    """The entries of containers that are reachable from an object, by the path of attributes to them."""
    found: Counter[str] = Counter()
    for path, item in reachable(root):
        if isinstance(item, np.ndarray):
            found[path] += item.size
        elif hasattr(item, "__len__") and not isinstance(item, str | bytes):
            found[path] += len(item)
    return found
