"""What all verbs share: exit statuses, how bad input is told, and the flag that names the input."""

import sys
from typing import Annotated, Final, TypeAlias

from cyclopts import Parameter

#: The input, or the command line, cannot be used.
BAD_INPUT: Final = 2
#: We failed.
INTERNAL_ERROR: Final = 1

#: The type of `file`: `-f` of every verb.
Files: TypeAlias = Annotated[
    tuple[str, ...],
    Parameter(name=["--file", "-f"], negative=(), allow_leading_hyphen=True, show_default=False, metavar="PATH"),
]


def refuse(text: str) -> int:
    """Say what is wrong with the input, a line each. Returns the exit status."""
    for line in text.splitlines():
        print(f"error: {line}", file=sys.stderr)
    return BAD_INPUT
