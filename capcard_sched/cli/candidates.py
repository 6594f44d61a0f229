"""Candidates for the next word of a command line: commands, flags, their values, and names of objects."""

from __future__ import annotations

import io
import itertools
import json
import signal
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Final, Literal, get_args, get_origin

from capcard_sched.cli.output import put

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cyclopts import App

#: Directives of kubectl (cobra): file names may follow, or nothing but the candidates.
_FILES: Final = 0
_NO_FILES: Final = 4
#: Seconds after which a request for candidates ends without any.
_MOST_SECONDS: Final = 30
#: A command to the list that has the names of its argument.
_NAMED: Final[dict[tuple[str, ...], str]] = {
    ("explain",): "job",
    **{("job", verb): "job" for verb in ("list", "get", "suspend", "resume", "delete")},
    **{("queue", verb): "queue" for verb in ("list", "get", "open", "close", "update", "delete")},
    **{(kind, "list"): kind for kind in ("card", "node", "pod")},
}
#: A flag to the list that has its values.
_NAMED_BY_FLAG: Final = {"--queue": "queue", "-q": "queue", "--drain": "node", "--job": "job", "-j": "job"}
#: Flags of the line that the list gets, too: the source, and the namespace.
_SOURCE: Final = frozenset(
    {"-f", "--file", "--until", "--scheduler-conf", "--recording", "--kubeconfig", "--context", "--cache"}
)
_NAMESPACE: Final = frozenset({"-n", "--namespace"})


def print_candidates(app: App, words: Sequence[str]) -> None:
    """Print a candidate for the last word per line, and a directive last. A slow source ends the process."""
    signal.alarm(_MOST_SECONDS)
    found, directive = candidates(app, words or [""])
    for candidate in found:
        put(candidate)
    put(f":{directive}")


def candidates(app: App, words: Sequence[str]) -> tuple[list[str], int]:
    """What the last of the words after the program can be, and kubectl's directive."""
    *before, current = words
    path, apps, rest = app.parse_commands(before)
    command = apps[-1]
    arguments = [] if command.default_command is None else list(command.assemble_argument_collection())
    flag, equals, typed = current.partition("=")
    if not equals:
        flag, typed = (rest[-1] if rest else ""), current
    values = next((argument for argument in arguments if flag in argument.names), None)
    if values is not None and values.hint is not bool:
        prefix = f"{flag}=" if equals else ""
        listed = _NAMED_BY_FLAG.get(flag)
        known = list(_choices(values.hint)) if listed is None else _names(app, listed, before)
        choices = [f"{prefix}{choice}" for choice in known if choice.startswith(typed)]
        return choices, _NO_FILES if choices or listed else _FILES
    if current.startswith("-"):
        names = {name for argument in arguments for name in argument.names if name.startswith("--")} | {"--help"}
        return sorted(name for name in names if name.startswith(current)), _NO_FILES
    if command.default_command is None:
        if rest:  # an unknown command
            return [], _NO_FILES
        return [name for name in command if not name.startswith("-") and name.startswith(current)], _NO_FILES
    listed = _NAMED.get(tuple(path))
    if listed is not None:
        return [name for name in _names(app, listed, before) if name.startswith(current)], _NO_FILES
    positional = [argument for argument in arguments if argument.index is not None]
    choices = [choice for argument in positional for choice in _choices(argument.hint) if choice.startswith(current)]
    return choices, _NO_FILES if choices else _FILES


def _names(app: App, kind: str, words: Sequence[str]) -> list[str]:
    """The names in a list of the source and namespace of a line; none if it cannot be read."""
    kept = _SOURCE | _NAMESPACE if kind in {"job", "pod"} else _SOURCE
    flags = [word for word in words if word.partition("=")[0] in kept and "=" in word]
    flags += [part for pair in itertools.pairwise(words) if pair[0] in kept for part in pair]
    out = io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(io.StringIO()):
            app([kind, "list", "-o", "json", *flags], exit_on_error=False, print_error=False)
        return sorted({item["name"] for item in json.loads(out.getvalue())["items"]})
    except Exception:  # noqa: BLE001 - without a source there are no candidates
        return []


def _choices(hint: object) -> Iterator[str]:
    """The values of a Literal, also inside a union or a tuple."""
    if get_origin(hint) is Literal:
        yield from map(str, get_args(hint))
    else:
        for part in get_args(hint):
            yield from _choices(part)
