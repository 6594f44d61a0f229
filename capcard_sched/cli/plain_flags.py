"""Reads ordinary command lines of services without cyclopts, whose import and tables take a fifth of a start.

A line with anything else, mistakes included, is left to cyclopts, so that its messages stay. Tests compare both.
"""

from __future__ import annotations

import os
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, get_args, get_origin

from capcard_sched.daemon.flags import Flag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_Options = TypeVar("_Options")
_SWITCHES: Final = {"true": True, "false": False}


class _NotPlainError(Exception):
    """The command line is left to cyclopts."""


class _Word(NamedTuple):
    """A value as parsers of `flag_values` read it."""

    value: str


class _Field(NamedTuple):
    """The field of a flag. `owner` is its class, options or those of a field of them."""

    owner: type[Any]
    name: str
    type: Any
    flag: Flag


def read_plain(options: type[_Options], arguments: Sequence[str]) -> _Options | None:
    """The options of a command line; None if cyclopts is to parse it."""
    table = {flag: field for field in _fields(options) for flag in _names(field)}
    given: dict[str, list[str]] = {}
    try:
        for field, value in _values(table, arguments):
            given.setdefault(_names(field)[0], []).append(value)
        if any(_reads_environment(field) for field in table.values()):
            return None
        values: dict[type[Any], dict[str, Any]] = {}
        for flag, words in given.items():
            field = table[flag]
            values.setdefault(field.owner, {})[field.name] = _value(field, words)
    except (_NotPlainError, ValueError):
        return None
    inner = {name: owner(**values[owner]) for name, owner in _inner(options) if owner in values}
    return options(**values.get(options, {}), **inner)


def _inner(options: Any) -> Iterator[tuple[str, type[Any]]]:
    """The fields that are options themselves, and their classes."""
    factories: list[tuple[str, Any]] = [(item.name, item.default_factory) for item in fields(options)]
    return ((name, factory) for name, factory in factories if isinstance(factory, type) and is_dataclass(factory))


def _fields(options: type[Any]) -> Iterator[_Field]:
    inner = dict(_inner(options))
    for item in fields(options):
        if item.name in inner:
            yield from _fields(inner[item.name])
        else:
            hint, flag = get_args(item.type)
            yield _Field(options, item.name, hint, flag)


def _names(field: _Field) -> tuple[str, ...]:
    names: tuple[str, ...] = field.flag.settings.get("name", (f"--{field.name.replace('_', '-')}",))
    return names


def _values(table: dict[str, _Field], arguments: Sequence[str]) -> Iterator[tuple[_Field, str]]:
    words = iter(arguments)
    for word in words:
        name, assigned, value = word.partition("=")
        field = table.get(name)
        if field is None:
            raise _NotPlainError
        if not assigned:
            value = "true" if field.type is bool else next(words, "")
            if value.startswith("-"):
                raise _NotPlainError
        if not value:
            raise _NotPlainError
        yield field, value


def _reads_environment(field: _Field) -> bool:
    return field.flag.settings.get("env_var", "") in os.environ


def _value(field: _Field, words: list[str]) -> Any:
    """Raises ValueError for a value that is not accepted."""
    is_list = get_origin(field.type) is tuple
    if len(words) > 1 and not is_list:
        raise _NotPlainError
    if field.flag.converter is not None:
        return field.flag.converter(field.type, [_Word(word) for word in words])
    (word,) = words
    if field.type is str or (get_origin(field.type) is Literal and word in get_args(field.type)):
        return word
    if field.type is bool and word in _SWITCHES:
        return _SWITCHES[word]
    if field.type is Path:
        return Path(word)
    raise _NotPlainError
