"""Flags of services as plain records: a start reads ordinary command lines without cyclopts, which takes a fifth of it.

`cli/flag_parameters.py` makes parameters of cyclopts of them, for other command lines, `--help` and the docs.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class FlagGroup(NamedTuple):
    """A panel of `--help`."""

    name: str
    #: Panels are sorted by it.
    sort_key: int


class Flag(NamedTuple):
    """One flag, in the `Annotated` type of its field. The name of the field is the name of the flag."""

    group: FlagGroup
    #: A parser of `flag_values`; None for the parser of the type.
    converter: Any
    #: Further arguments of `cyclopts.Parameter`.
    settings: dict[str, Any]


def flag(group: FlagGroup, converter: Any = None, **settings: Any) -> Flag:
    return Flag(group, converter, settings)
