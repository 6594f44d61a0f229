"""The `-f` flag, shared by all commands."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from cyclopts import Parameter

#: The type of the parameter.
Files: TypeAlias = Annotated[
    tuple[str, ...],
    Parameter(name=["--file", "-f"], negative=(), allow_leading_hyphen=True, show_default=False, metavar="PATH"),
]
