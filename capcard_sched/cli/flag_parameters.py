"""Parameters of cyclopts for the flags of services."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin

from cyclopts import Group, Parameter

from capcard_sched.daemon.flags import Flag

_Options = TypeVar("_Options")


def with_parameters(options: type[_Options]) -> type[_Options]:
    """The class of options, whose annotations, its bases' and its fields' included, now have parameters of cyclopts."""
    for owner in options.__mro__:
        if not is_dataclass(owner):
            continue
        Parameter(name="*")(owner)
        hints = owner.__annotations__
        for name, hint in hints.items():
            hints[name] = _with_parameter(hint)
    for item in fields(options):  # type: ignore[arg-type]  # a dataclass
        if is_dataclass(item.default_factory):
            with_parameters(item.default_factory)
    return options


def _with_parameter(hint: Any) -> Any:
    if get_origin(hint) is not Annotated or not isinstance(flag := get_args(hint)[1], Flag):
        return hint
    group = Group(flag.group.name, sort_key=flag.group.sort_key)
    return Annotated[get_args(hint)[0], Parameter(group=group, converter=flag.converter, **flag.settings)]
