"""Decoding of the arguments of plugins and actions into their structs.

A scalar of the wrong type, or out of bounds, produces a warning and keeps its default, so that existing files load. A
structured argument (a list, a map, a nested struct) of the wrong form is an error: a partly decoded value would be a
guess.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import inspect

from capcard_sched.framework.api.problems import ConfProblems, Path, nearest, path_text, shown, shown_text
from capcard_sched.model.decode_errors import field_problem
from capcard_sched.model.timestamps import DurationError, parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: For a map of scalars: `Annotated[dict[str, Literal["a", "b"]], LENIENT]`. Invalid entries are dropped with a warning,
#: and a value that is not a map produces a warning, too.
LENIENT: Final = msgspec.Meta(extra={"lenient": True})

#: The warning about limits of the HyperNodes in which victims are searched.
NO_DOMAIN_LIMIT: Final = (
    "has no effect: victims are searched for on all nodes, for a hard network topology in up to 64 HyperNodes"
)

Arguments = TypeVar("Arguments", bound=msgspec.Struct)

_INT64 = 2**63
_SCALARS = (
    inspect.BoolType,
    inspect.IntType,
    inspect.FloatType,
    inspect.StrType,
    inspect.LiteralType,
    inspect.NoneType,
)


class ArgumentReader:
    """Decodes the `arguments` of one entry and records each problem at its place in the document."""

    def __init__(self, problems: ConfProblems, path: Path, owner: str) -> None:
        """`owner` names the owner of the arguments in messages: `plugin binpack`."""
        self._problems = problems
        self._path = path
        self._owner = owner

    def warning(self, key: str, message: str, *, hint: str = "", accepted: str = "") -> None:
        """Records a warning for argument `key`; the message includes the value used instead."""
        self._problems.warning((*self._path, key), message, hint=hint, accepted=accepted)

    def error(self, key: str, message: str, *, hint: str = "", accepted: str = "") -> None:
        """Records an error for argument `key`: the document is rejected."""
        self._problems.error((*self._path, key), message, hint=hint, accepted=accepted)

    def unsupported(self, key: str, feature: str) -> None:
        """Warns that argument `key` requests a feature that is not supported."""
        self.warning(key, f"has no effect: {feature} is not supported")

    def positive_duration(self, key: str, text: str, default: str) -> str:
        """The text, when it is a duration above 0, else, with a warning, the default."""
        try:
            if parse_duration(text) > 0:
                return text
        except DurationError:
            pass
        self.warning(key, f'"{text}" is not a duration above 0; {default} is used')
        return default

    def decode(self, struct: type[Arguments], raw: Mapping[str, object], *, handled: Iterable[str] = ()) -> Arguments:
        """The arguments as a `struct`: fields by their encoded names, bounds and choices from their annotations.

        The caller reads the keys in `handled` (`read`). Any other key without a field produces a warning.
        """
        fields = msgspec.structs.fields(struct)
        values: dict[str, Any] = {}
        for field in fields:
            if raw.get(field.encode_name) is None:
                if field.required:
                    self.error(field.encode_name, "is required", accepted=accepted_form(field.type))
                continue
            value = self.read(raw, field.encode_name, field.type, msgspec.UNSET)
            if value is not msgspec.UNSET:
                values[field.name] = value
        known = {field.encode_name for field in fields} | set(handled)
        for key in raw:
            if key not in known:
                self.unknown(key, known)
        if any(field.required and field.name not in values for field in fields):
            return struct.__new__(struct)  # the document is rejected: no plugin gets this struct
        return struct(**values)

    def inside(self, value: object, *steps: str | int) -> tuple[ArgumentReader, Mapping[str, object]]:
        """A reader of the map under `steps`; an empty map when it is null or, with a warning, not a map."""
        path = (*self._path, *steps)
        if value is not None and not isinstance(value, dict):
            self._problems.warning(path, f"expected a map, got {shown(value)}; the defaults are used")
        reader = ArgumentReader(self._problems, path, f"{path_text(steps)} of {self._owner}")
        return reader, value if isinstance(value, dict) else {}

    def unknown(self, key: str, known: Iterable[str]) -> None:
        """Warns that no field reads `key`."""
        known = sorted(known)
        hint = nearest(key, known)
        accepted = "" if hint else ", ".join(known) or "no arguments"
        self.warning(
            key, f'{self._owner} has no argument "{shown_text(key)}"; it is ignored', hint=hint, accepted=accepted
        )

    def decode_weighted(self, struct: type[Arguments], raw: Mapping[str, object], key: str, weight: Any) -> Arguments:
        """`decode` of a struct whose field `resources`, encoded as `key`, lists names separated by commas.

        The weight of each name, at `<key>.<name>` and 1 when absent, goes to `resource_weights`; `weight` is its type.
        The weight of a name that is not listed is ignored with a warning.
        """
        prefix = f"{key}."
        given = [each for each in raw if each.startswith(prefix)]
        arguments: Any = self.decode(struct, raw, handled=given)
        names = listed_names(arguments.resources)
        for each in given:
            if each.removeprefix(prefix) not in names:
                self.warning(each, f"the resource is not listed in {key}; its weight is ignored")
        weights = {name: self.read(raw, prefix + name, weight, 1) for name in names}
        decoded: Arguments = msgspec.structs.replace(arguments, resource_weights=weights)
        return decoded

    def read(self, raw: Mapping[str, object], key: str, annotation: Any, default: Any) -> Any:
        """The value of one argument; `default` when it is absent, null or, with a problem recorded, invalid."""
        value = raw.get(key)
        if value is None:
            return default
        declared, lenient = _plain(inspect.type_info(annotation))
        if lenient and isinstance(declared, inspect.DictType):
            return self._lenient_map(key, value, declared, annotation, default)
        if _is_scalar(declared):
            if _fits(value, declared):
                try:
                    return msgspec.convert(value, annotation)
                except (msgspec.ValidationError, OverflowError):
                    pass
            expected = accepted_form(annotation)
            self.warning(key, f"expected {expected}, got {shown(value)}; the default is used", accepted=expected)
            return default
        try:
            return msgspec.convert(value, annotation)
        except (msgspec.ValidationError, OverflowError) as problem:
            self.error(key, str(field_problem(problem, value)), accepted=accepted_form(annotation))
            return default

    def _lenient_map(self, key: str, value: object, declared: inspect.DictType, annotation: Any, default: Any) -> Any:
        if not isinstance(value, dict):
            expected = accepted_form(annotation)
            self.warning(key, f"expected {expected}, got {shown(value)}; the default is used", accepted=expected)
            return default
        entries: dict[str, Any] = {}
        expected = _words(declared.value_type)
        for name, entry in value.items():
            if _fits(entry, declared.value_type) and _is_choice(entry, declared.value_type):
                entries[name] = entry
            else:
                self._problems.warning(
                    (*self._path, key, name),
                    f"expected {expected}, got {shown(entry)}; the entry is dropped",
                    hint=_nearest_choice(entry, declared.value_type),
                    accepted=expected,
                )
        return entries


def listed_names(text: str) -> list[str]:
    """The names in a comma-separated list, without surrounding blanks and duplicates."""
    return list(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))


def _plain(declared: inspect.Type) -> tuple[inspect.Type, bool]:
    """The type without its annotations, and whether one of them is LENIENT."""
    lenient = False
    while isinstance(declared, inspect.Metadata):
        lenient = lenient or bool((declared.extra or {}).get("lenient"))
        declared = declared.type
    return declared, lenient


def _is_scalar(declared: inspect.Type) -> bool:
    if isinstance(declared, inspect.UnionType):
        return all(_is_scalar(option) for option in declared.types)
    return isinstance(declared, _SCALARS)


def _is_choice(value: object, declared: inspect.Type) -> bool:
    return not isinstance(declared, inspect.LiteralType) or value in declared.values


def _nearest_choice(value: object, declared: inspect.Type) -> str:
    if isinstance(value, str) and isinstance(declared, inspect.LiteralType):
        return nearest(value, [str(choice) for choice in declared.values])
    return ""


def _fits(value: object, declared: inspect.Type) -> bool:
    """Whether the YAML type matches: booleans and integers are strict, a number may be either kind."""
    if isinstance(declared, inspect.UnionType):
        return any(_fits(value, option) for option in declared.types)
    if isinstance(declared, inspect.BoolType):
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if isinstance(declared, inspect.IntType):
        return isinstance(value, int) and -_INT64 <= value < _INT64
    if isinstance(declared, inspect.FloatType):
        return (isinstance(value, int) and abs(value) < _INT64) or (isinstance(value, float) and math.isfinite(value))
    if isinstance(declared, inspect.StrType):
        return isinstance(value, str)
    if isinstance(declared, inspect.LiteralType):
        return isinstance(value, (str, int))
    return False


def accepted_form(annotation: Any) -> str:
    """The accepted form of a field: `a number >= 1`, `one of sum, single`."""
    return _words(inspect.type_info(annotation))


def _words(declared: inspect.Type) -> str:
    declared, _ = _plain(declared)
    if isinstance(declared, inspect.UnionType):
        return " or ".join(_words(option) for option in declared.types if not isinstance(option, inspect.NoneType))
    if isinstance(declared, inspect.LiteralType):
        return f"one of {', '.join(str(choice) for choice in declared.values)}"
    if isinstance(declared, inspect.DictType):
        return f"a map of strings to {_words(declared.value_type)}"
    if isinstance(declared, (inspect.ListType, inspect.VarTupleType)):
        return f"a list, each entry {_words(declared.item_type)}"
    if isinstance(declared, inspect.StructType):
        return f"a map with {', '.join(field.encode_name for field in declared.fields)}"
    if isinstance(declared, (inspect.IntType, inspect.FloatType)):
        noun = "an integer" if isinstance(declared, inspect.IntType) else "a number"
        bounds = ((">", declared.gt), (">=", declared.ge), ("<", declared.lt), ("<=", declared.le))
        limits = [f"{sign} {bound:.16g}" for sign, bound in bounds if bound is not None]
        return " ".join([noun, " and ".join(limits)]) if limits else noun
    if isinstance(declared, inspect.BoolType):
        return "true or false"
    if isinstance(declared, inspect.StrType):
        return "a non-empty string" if declared.min_length else "a string"
    return "a value"
