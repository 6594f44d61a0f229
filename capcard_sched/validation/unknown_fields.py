"""Fields that neither Kubernetes nor Volcano knows, as the strict validation of an API server finds them.

`field_names.json` (made by `make manifests`) has the fields of every kind that the product reads, and of pods.
"""

from __future__ import annotations

import difflib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.model.decode_errors import field_path
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.text_cache import text_cache
from capcard_sched.model.unsupported import FEATURES
from capcard_sched.validation.checks import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.validation.checks import Severity
    from capcard_sched.validation.inventory import Json

#: Findings of one object; the number of further ones follows.
MAX_FINDINGS: Final = 64
#: Fields of a pod that have a finding of their own.
_UNSUPPORTED: Final = frozenset(feature.field for feature in FEATURES)
#: Characters. Longer names of fields are not compared with known ones.
_LONG_NAME: Final = 64
#: Levels of an object; deeper values are not checked.
_DEPTH: Final = 64
#: Prefix of the type of a mapping of names.
_MAPPING: Final = "{}"


class _FieldNames(msgspec.Struct, frozen=True):
    #: Kind, as `kind_of` names it, to its type.
    kinds: dict[str, str]
    #: Type to its fields, each with the type of its value, "" for one without known fields.
    types: dict[str, dict[str, str]]


@cache
def _field_names() -> _FieldNames:
    text = files("capcard_sched.validation").joinpath("field_names.json").read_bytes()
    return msgspec.json.decode(text, type=_FieldNames)


def unknown_fields(obj: Json) -> list[Finding]:
    """Findings about unknown fields of an object of a known kind: errors, warnings in `status`.

    At most 64, and one with the number of the others. Kinds of other API groups have none.
    """
    of = _field_names().kinds.get(kind_of(obj))
    if of is None:
        return []
    found: list[Finding] = []
    more = 0
    for path, name, parent in _unknown(obj, of, ()):
        if len(found) == MAX_FINDINGS:
            more += 1
            continue
        near = _nearest(name, parent)
        hint = f'; did you mean "{near}"?' if near else ""
        severity: Severity = "warning" if path and path[0] == "status" else "error"
        found.append(Finding(severity, field_path((*path, name)), f"unknown field, without effect{hint}"))
    if more:
        found.append(Finding("error", "", f"{more} more unknown fields"))
    return found


def _unknown(value: Json, of: str, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Path, name and type of the holder of each unknown field."""
    fields = _field_names().types[of]
    for name, entry in value.items():
        inner = fields.get(name)
        if inner is None:
            if not (path[-1:] == ("spec",) and name in _UNSUPPORTED):
                yield path, str(name), of
        elif inner and entry and len(path) < _DEPTH:
            yield from _inside(entry, inner, (*path, name))


def _inside(value: Any, of: str, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    if of.startswith(_MAPPING):
        of = of.removeprefix(_MAPPING)
        for name, entry in value.items() if isinstance(value, dict) else ():
            yield from _inside(entry, of, (*path, str(name)))
    elif isinstance(value, dict):
        yield from _unknown(value, of, path)
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            if isinstance(entry, dict):
                yield from _unknown(entry, of, (*path, str(index)))


# Computed 7.3 us, kept 0.6 (benchmarks/caches.py).
@text_cache(4096)
def _nearest(name: str, of: str) -> str:
    """The known field of a type that a name resembles; "" without one."""
    if len(name) > _LONG_NAME:
        return ""
    close = difflib.get_close_matches(name, _field_names().types[of], n=1, cutoff=0.75)
    return close[0] if close else ""
