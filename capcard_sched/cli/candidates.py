"""Candidates for the next word of a command line, from the commands and their flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args, get_origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cyclopts import App
    from cyclopts.argument import Argument

#: Directives of kubectl (cobra): file names may follow, or nothing but the candidates.
_FILES: Final = 0
_NO_FILES: Final = 4


def print_candidates(app: App, words: Sequence[str]) -> None:
    """Print a candidate for the last word per line, and a directive last."""
    found, directive = candidates(app, words or [""])
    for candidate in found:
        print(candidate)
    print(f":{directive}")


def candidates(app: App, words: Sequence[str]) -> tuple[list[str], int]:
    """What the last of the words after the program can be, and kubectl's directive."""
    *before, current = words
    _, apps, rest = app.parse_commands(before)
    command = apps[-1]
    arguments = [] if command.default_command is None else list(command.assemble_argument_collection())
    flag, equals, typed = current.partition("=")
    if not equals:
        flag, typed = (rest[-1] if rest else ""), current
    values = next((argument for argument in arguments if flag in argument.names), None)
    if values is not None and not _is_switch(values):
        prefix = f"{flag}=" if equals else ""
        choices = [f"{prefix}{choice}" for choice in _choices(values.hint) if str(choice).startswith(typed)]
        return choices, _NO_FILES if choices else _FILES
    if current.startswith("-"):
        names = {name for argument in arguments for name in argument.names if name.startswith("--")} | {"--help"}
        return sorted(name for name in names if name.startswith(current)), _NO_FILES
    if command.default_command is None:
        if rest:  # an unknown command
            return [], _NO_FILES
        return [name for name in _subcommands(command) if name.startswith(current)], _NO_FILES
    positional = [argument for argument in arguments if argument.index is not None]
    choices = [choice for argument in positional for choice in _choices(argument.hint) if choice.startswith(current)]
    return choices, _NO_FILES if choices else _FILES


def _subcommands(command: App) -> list[str]:
    return [name for name in command if not name.startswith("-")]


def _is_switch(argument: Argument) -> bool:
    return argument.hint is bool


def _choices(hint: object) -> Iterator[str]:
    """The values of a Literal, also inside a union or a tuple."""
    if get_origin(hint) is Literal:
        yield from map(str, get_args(hint))
    else:
        for part in get_args(hint):
            yield from _choices(part)
