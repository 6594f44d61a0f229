"""Converts errors of the decoder to messages for users: field, value found, accepted form."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from capcard_sched.model.quoting import escaped, shown
from capcard_sched.validation.checks import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

_EXPECTED = re.compile(r"Expected (?P<expected>.+?), got (?P<got>.+?)$")
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]+)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")

_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
}


def describe(error: msgspec.ValidationError, value: Any) -> Finding:
    """The problem behind `error`, which was raised while decoding `value`."""
    text, _, place = str(error).partition(" - at `")
    steps = [name or index for name, index in _STEP.findall(place.removesuffix("`").removeprefix("key in "))]
    missing = _MISSING.match(text)
    if missing is not None:
        return Finding("error", field_path([*_located(steps, value, None), missing["field"]]), "is required")
    match = _EXPECTED.match(text)
    if match is None:
        return Finding("error", field_path(_located(steps, value, None)), text[:1].lower() + text[1:])
    accepted = [word for word in match["expected"].strip("`").split(" | ") if word != "null"]
    path = _located(steps, value, accepted)
    if set(accepted) == {"str", "int", "float"}:
        words = "a quantity such as 500m, 2 or 16Gi"
    else:
        words = " or ".join(_WORDS.get(word, word) for word in accepted)
    return Finding("error", field_path(path), f"expected {words}, got {shown(_at(path, value))}")


def field_path(steps: Sequence[str]) -> str:
    """Formats a path as users write it: `spec.containers[0].resources.requests["nvidia.com/gpu"]`."""
    path = ""
    for step in steps:
        if step.isdigit():
            path += f"[{step}]"
        elif re.fullmatch(r"[A-Za-z0-9_-]+", step):
            path += f".{step}" if path else step
        else:
            path += f'["{escaped(step)}"]'
    return path or "the document"


def _at(steps: list[str], value: Any) -> Any:
    for step in steps:
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value


def _located(steps: list[str], value: Any, accepted: list[str] | None) -> list[str]:
    """`steps` with each `...` (the decoder does not name the key of a mapping) replaced by the first key that fits."""
    found: list[str] = []
    for position, step in enumerate(steps):
        if step != "...":
            found.append(step)
            continue
        mapping = _at(found, value)
        rest = steps[position + 1 :]
        for key in mapping if isinstance(mapping, dict) else ():
            candidate = _located([*found, str(key), *rest], value, accepted)
            if accepted is None or not _is_one_of(_at(candidate, value), accepted):
                return candidate
        return found
    return found


def _is_one_of(value: Any, accepted: list[str]) -> bool:
    if value is None:
        return False
    if isinstance(value, bool):
        return "bool" in accepted
    if isinstance(value, int):
        return "int" in accepted or "float" in accepted
    types = {str: "str", float: "float", dict: "object", list: "array"}
    return types.get(type(value), "") in accepted
