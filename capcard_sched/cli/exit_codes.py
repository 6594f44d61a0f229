"""Exit statuses, the report of invalid input, and the `-f` flag, shared by all commands."""

import sys
from typing import Annotated, Final, TypeAlias

from cyclopts import Parameter

#: Exit status: the input or the command line is invalid.
BAD_INPUT: Final = 2
#: Exit status: a defect of the program.
INTERNAL_ERROR: Final = 1

#: The type of the `-f` parameter of every command.
Files: TypeAlias = Annotated[
    tuple[str, ...],
    Parameter(name=["--file", "-f"], negative=(), allow_leading_hyphen=True, show_default=False, metavar="PATH"),
]


def usage_error(text: str) -> int:
    """Print one error line per line of `text`. Returns the exit status."""
    for line in text.splitlines():
        print(f"error: {line}", file=sys.stderr)
    return BAD_INPUT
