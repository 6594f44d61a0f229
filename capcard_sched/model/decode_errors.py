"""Converts errors of the decoder to messages for users: field, accepted form, value found."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from capcard_sched.model.quoting import escaped, shortened, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_EXPECTED: Final = re.compile(r"Expected `(?P<types>[^`]+)`(?: (?P<bound>.+?))?(?:, got (?P<got>.+))?$", re.DOTALL)
_FIELD: Final = re.compile(r"Object (?P<what>missing required|contains unknown) field `(?P<field>.*)`$", re.DOTALL)
_PLACE: Final = re.compile(r" - at (?P<key>`key` in )?`\$(?P<steps>[^`]*)`$")
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_ABSENT: Final = object()
UNKNOWN_FIELD: Final = "unknown field"
#: Characters of a path in a problem: an event has 1,024 for all.
_LONGEST_PATH: Final = 512

_WORDS: Final = {
    "object": "a mapping",
    "array": "a list",
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
}
_BOUND: Final = re.compile(r"(?P<size>of length )?(?P<sign>>=|<=|>|<)? ?(?P<limit>-?[0-9.e+]+)(, got .*)?")
_SIGNS: Final[dict[str | None, tuple[str, Callable[[Any, float], bool]]]] = {
    ">=": ("at least", operator.ge),
    "<=": ("at most", operator.le),
    ">": ("above", operator.gt),
    "<": ("below", operator.lt),
    None: ("exactly", operator.eq),
}


class _Form(NamedTuple):
    """What the decoder accepts: names of types, and a bound or ""."""

    types: list[str]
    bound: str

    def words(self) -> str:
        names = [name for name in self.types if name != "null"] or self.types
        if set(names) == {"str", "int", "float"}:
            return "a quantity such as 500m, 2 or 16Gi"
        words = " or ".join(_WORDS.get(name, name) for name in names)
        bound = _BOUND.fullmatch(self.bound)
        if bound is None:
            return f"{words} {self.bound}".rstrip()
        return f"{words}, {'of length ' if bound['size'] else ''}{_SIGNS[bound['sign']][0]} {bound['limit']}"

    def accepts(self, value: Any) -> bool:
        """Whether `value` can be another one than the decoder's error is about."""
        if value is _ABSENT:
            return True
        if value is None:
            return "null" in self.types
        if isinstance(value, bool):
            return "bool" in self.types
        if isinstance(value, int):
            found = bool({"int", "float"} & set(self.types))
        else:
            found = {str: "str", float: "float", dict: "object", list: "array"}.get(type(value), "") in self.types
        bound = _BOUND.fullmatch(self.bound)
        if not found or bound is None:
            return found and not self.bound
        return _SIGNS[bound["sign"]][1](len(value) if bound["size"] else value, float(bound["limit"]))


class FieldProblem(NamedTuple):
    """The field of a wrong value, as users write it, and what is wrong; field "" for the document itself."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message

    def within(self, place: str) -> FieldProblem:
        """The problem of a document whose field `place` has the decoded value."""
        separator = "." if place and self.field and not self.field.startswith("[") else ""
        return FieldProblem(f"{place}{separator}{self.field}", self.message)


def _problem(steps: Sequence[str], message: str) -> FieldProblem:
    return FieldProblem(shortened(field_path(steps), _LONGEST_PATH), message)


def field_problem(error: Exception, value: Any = _ABSENT) -> FieldProblem:
    """The problem behind `error`, which was raised while decoding `value`."""
    place = _PLACE.search(str(error))
    text = str(error) if place is None else str(error)[: place.start()]
    steps = [name or index for name, index in _STEP.findall("" if place is None else place["steps"])]
    field = _FIELD.match(text)
    if field is not None:
        message = "is required" if field["what"] == "missing required" else UNKNOWN_FIELD
        return _problem([*_located(steps, value, None), field["field"]], message)
    match = _EXPECTED.match(text)
    if match is None:
        is_word = isinstance(error, msgspec.DecodeError) and not text[1:2].isupper()  # not `JSON is malformed`
        shown_text = text[:1].lower() + text[1:] if is_word else text
        return _problem(_located(steps, value, None), shown_text)
    form = _Form(match["types"].split(" | "), match["bound"] or "")
    if place is not None and place["key"]:
        return _problem(_located(steps, value, None), f"a key: expected {form.words()}")
    path = _located(steps, value, form)
    found, got = _at(path, value), (match["got"] or "").strip("`")
    shown_value = _WORDS.get(got, got) if found is _ABSENT else shown(found)
    return _problem(path, f"expected {form.words()}" + (f", got {shown_value}" if shown_value else ""))


def json_problem(error: Exception, data: bytes | str) -> FieldProblem:
    """The problem behind `error`, which was raised while decoding `data`."""
    try:
        return field_problem(error, msgspec.json.decode(data))
    except (msgspec.DecodeError, RecursionError):  # such as a number beyond all floats
        return field_problem(error)


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
    return path


def _at(steps: list[str], value: Any) -> Any:
    for step in steps:
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return _ABSENT
    return value


def _located(steps: list[str], value: Any, form: _Form | None) -> list[str]:
    """`steps` with the keys of mappings, which the decoder writes as `...`; up to the first one that is not found."""
    if "..." not in steps:
        return steps
    found = _with_keys(steps, value, form)
    return steps[: steps.index("...")] if found is None else found


def _with_keys(steps: list[str], value: Any, form: _Form | None) -> list[str] | None:
    """The steps to the first value that `form` does not accept; without a form to the first one. None: no such one."""
    if "..." not in steps:
        return steps if form is None or not form.accepts(_at(steps, value)) else None
    above, below = steps[: steps.index("...")], steps[steps.index("...") + 1 :]
    mapping = _at(above, value)
    for key in mapping if isinstance(mapping, dict) else ():
        found = _with_keys([*above, str(key), *below], value, form)
        if found is not None:
            return found
    return None
