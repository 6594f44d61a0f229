"""The command `capcard-sched` and its subcommands. The module of a subcommand is imported on first use."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

# The scheduler multiplies no matrices: the thread pool that OpenBLAS starts at import only costs time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import cyclopts

from capcard_sched import __version__
from capcard_sched.cli.candidates import print_candidates
from capcard_sched.cli.exit_codes import BAD_INPUT, INTERNAL_ERROR
from capcard_sched.gc import end_at_once, keep_all

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


#: The name in usages: kubectl runs a program called kubectl-capcard as `kubectl capcard`.
PROGRAM = "kubectl capcard" if Path(sys.argv[0]).name == "kubectl-capcard" else "capcard-sched"

app = cyclopts.App(
    name=PROGRAM,
    help="A batch scheduler for Kubernetes GPU clusters with quotas per card model.",
    version=__version__,
    result_action="return_value",
)
app.command("capcard_sched.cli.run:run", name="run", help_formatter=whole_flags)
app.command("capcard_sched.cli.run:controllers", name="controllers", help_formatter=whole_flags)
app.command("capcard_sched.cli.admission:admission", name="admission", help_formatter=whole_flags)
app.command("capcard_sched.cli.simulate:simulate", name="simulate")
app.command("capcard_sched.cli.replay:replay", name="replay")
app.command("capcard_sched.cli.explain:explain", name="explain")
app.command("capcard_sched.cli.snapshot:snapshot", name="snapshot")
app.command("capcard_sched.cli.what_if:what_if", name="what-if")
app.command("capcard_sched.cli.queue:app", name="queue")
app.command("capcard_sched.cli.capacity:card_app", name="card")
app.command("capcard_sched.cli.capacity:node_app", name="node")
app.command("capcard_sched.cli.job:app", name="job")
app.command("capcard_sched.cli.pod:app", name="pod")
app.command("capcard_sched.cli.validate:validate", name="validate")
app.command("capcard_sched.cli.trace:app", name="trace")
app.command("capcard_sched.cli.completion:completion", name="completion")

_HELP = ("-h", "--help")
#: Subcommands that read a cluster once; with --watch they go on.
_READING = frozenset({"explain", "snapshot", "job", "queue", "card", "node", "pod"})
#: Subcommand to its positional argument, for the error about a surplus one.
_POSITIONAL = {"explain": "explain takes one NAME", "replay": "replay takes one FILE"}


def run(arguments: list[str]) -> int:
    """Run one command line. Returns 0, 2 for invalid input, 1 for an internal error."""
    if not arguments or arguments[0] in _HELP:
        for verb in app:
            app[verb]  # imported now: the list of commands shows a summary of each
    try:
        status = app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except cyclopts.CycloptsError as error:
        text = str(error)
        if isinstance(error, cyclopts.UnusedCliTokensError):
            words = ", ".join(f'"{word}"' for word in error.unused_tokens or ())
            text = f"unexpected argument {words}: {_POSITIONAL.get(arguments[0], 'pass files and folders with -f')}"
        elif isinstance(error, cyclopts.CoercionError) and error.target_type is bool:
            text += " Accepted: true or false."
        print(f"error: {' '.join(text.split())}", file=sys.stderr)
        return BAD_INPUT
    except (BrokenPipeError, SystemExit) as error:
        # The reader of the pipe is gone (`| head`). rich turns the error into an exit with status 1.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - last resort: traceback and the documented exit status
        import traceback

        traceback.print_exc()
        print(f"internal error: {type(error).__name__}: {error}", file=sys.stderr)
        return INTERNAL_ERROR
    return status if isinstance(status, int) else 0


def main() -> None:
    """The entry point. Output is UTF-8 in every locale: the same input gives the same bytes everywhere."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if sys.argv[1:2] == ["__complete"]:  # of the completion scripts; no command of users
        print_candidates(app, sys.argv[2:])
        return
    if not sys.argv[1:2] or sys.argv[1] not in _READING:
        sys.exit(run(sys.argv[1:]))
    keep_all()
    end_at_once(run(sys.argv[1:]))
