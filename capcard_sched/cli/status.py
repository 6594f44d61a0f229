"""Exit statuses of all verbs."""

from typing import Final

#: The input, or the command line, cannot be used.
BAD_INPUT: Final = 2
#: We failed.
INTERNAL_ERROR: Final = 1
