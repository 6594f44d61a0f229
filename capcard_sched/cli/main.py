"""The command `capcard-sched`: runs a command line, by a cache where one is named."""

from __future__ import annotations

import io
import os
import sys

# The scheduler multiplies no matrices: the thread pool that OpenBLAS starts at import only costs time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from capcard_sched.cli.cache_client import answer_by_cache
from capcard_sched.cli.output import put_error
from capcard_sched.gc import end_at_once, keep_all, pause

_HELP = ("-h", "--help")
#: Subcommands that read a cluster once; with --watch they go on.
_READING = frozenset({"explain", "snapshot", "job", "queue", "card", "node", "pod"})
#: Subcommands that run until a signal.
_SERVICES = frozenset({"run", "controllers", "admission"})
#: Subcommand to its positional argument, for the error about a surplus one.
_POSITIONAL = {"explain": "explain takes one NAME", "replay": "replay takes one FILE"}


def run(arguments: list[str]) -> int:
    """Run one command line. Returns 0, 2 for invalid input, 1 for an internal error."""
    from capcard_sched.cli.exit_codes import INTERNAL_ERROR

    try:
        status = None
        if arguments and arguments[0] in _SERVICES:
            from capcard_sched.cli.serving import serve_plain

            status = serve_plain(arguments[0], arguments[1:])
        if status is None:
            status = _run_parsed(arguments)
        sys.stdout.flush()
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
        put_error(f"internal error: {type(error).__name__}: {error}")
        return INTERNAL_ERROR
    return status


def _run_parsed(arguments: list[str]) -> int:
    """Run a command line by cyclopts. Returns the exit status."""
    import cyclopts  # not before: a cache responds, and a service starts, sooner than the import takes

    from capcard_sched.cli.commands import app
    from capcard_sched.cli.exit_codes import BAD_INPUT
    from capcard_sched.model.distributions import install_hint, not_installed

    if not arguments or arguments[0] in _HELP:
        for verb in app:
            app[verb]  # imported now: the list of commands shows a summary of each
    try:
        status = app(arguments, exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        text = str(error)
        if isinstance(error, cyclopts.UnusedCliTokensError):
            words = ", ".join(f'"{word}"' for word in error.unused_tokens or ())
            text = f"unexpected argument {words}: {_POSITIONAL.get(arguments[0], 'pass files and folders with -f')}"
        elif isinstance(error, cyclopts.UnknownCommandError) and (missing := not_installed("command", arguments[0])):
            text = f"{missing}; install it with {install_hint(arguments[0])}"
        elif isinstance(error, cyclopts.CoercionError) and error.target_type is bool:
            text += " Accepted: true or false."
        put_error(f"error: {' '.join(text.split())}")
        return BAD_INPUT
    return status if isinstance(status, int) else 0


def complete(words: list[str]) -> None:
    """Print the candidates for the last word: for the completion scripts, no command of users."""
    from capcard_sched.cli.candidates import print_candidates
    from capcard_sched.cli.commands import app

    print_candidates(app, words)


def main() -> None:
    """The entry point. Output is UTF-8 in every locale: the same input gives the same bytes everywhere."""
    arguments = sys.argv[1:]
    status = answer_by_cache(arguments)
    if status is not None:
        sys.exit(status)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if arguments[:1] == ["__complete"]:
        complete(arguments[1:])
        return
    if arguments and arguments[0] in _SERVICES:
        pause()
    if not arguments or arguments[0] not in _READING:
        sys.exit(run(arguments))
    keep_all()
    end_at_once(run(arguments))
