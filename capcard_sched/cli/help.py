"""Format of `--help` pages: flags are never wrapped, however narrow the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from cyclopts.help.specs import ColumnSpec
    from rich.console import Console, ConsoleOptions


def whole_flags(console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
    """Print a panel of flags without wrapping them: a wrapped flag reads like another and cannot be searched for."""
    from cyclopts.help import DefaultFormatter

    DefaultFormatter(column_specs=_columns)(console, options, panel)


def _columns(console: Console, options: ConsoleOptions, entries: list[HelpEntry]) -> tuple[ColumnSpec, ...]:
    from cyclopts.help.specs import NameRenderer, get_default_parameter_columns

    words = " ".join(label for entry in entries for label in entry.display_labels_with_metavar).split()
    longest = max(map(len, words), default=0)
    *marks, name, description = get_default_parameter_columns(console, options, entries)
    width = max(longest, name.max_width or 0)
    return (*marks, name.copy(renderer=NameRenderer(max_width=width), max_width=width, no_wrap=True), description)
