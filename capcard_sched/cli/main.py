"""The command `capcard-sched`: its verbs by name. A verb's module is imported when the verb is used."""

from __future__ import annotations

import io
import os
import sys

# The scheduler multiplies no matrices: threads that the array library starts for it at import would only cost time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import cyclopts

from capcard_sched import __version__
from capcard_sched.cli.exit_codes import BAD_INPUT, INTERNAL_ERROR
from capcard_sched.cli.help import whole_flags

app = cyclopts.App(
    name="capcard-sched",
    help="A batch scheduler for Kubernetes GPU clusters with quotas per card model.",
    version=__version__,
    result_action="return_value",
)
app.command("capcard_sched.cli.run:run", name="run", help_formatter=whole_flags)
app.command("capcard_sched.cli.simulate:simulate", name="simulate")
app.command("capcard_sched.cli.replay:replay", name="replay")
app.command("capcard_sched.cli.explain:explain", name="explain")
app.command("capcard_sched.cli.queue:app", name="queue")
app.command("capcard_sched.cli.validate:validate", name="validate")
app.command("capcard_sched.cli.trace:app", name="trace")

_HELP = ("-h", "--help")
#: What a command line is told that holds words beside its flags.
_UNUSED = "not understood: {words} (files and folders are given with -f)"


def run(arguments: list[str]) -> int:
    """Exit status for a command line: 0, 2 when it or its input is wrong, 1 when we are."""
    if not arguments or arguments[0] in _HELP:
        for verb in app:
            app[verb]  # imported now, so that the list of verbs can say what each does
    try:
        status = app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except cyclopts.CycloptsError as error:
        text = str(error)
        if isinstance(error, cyclopts.UnusedCliTokensError):
            text = _UNUSED.format(words=" ".join(error.unused_tokens or ()))
        elif isinstance(error, cyclopts.CoercionError) and error.target_type is bool:
            text += " Accepted: true or false."
        print(f"error: {' '.join(text.split())}", file=sys.stderr)
        return BAD_INPUT
    except (BrokenPipeError, SystemExit) as error:
        # Whoever read our output has seen enough (`| head`); nothing more can be said to them. The library that draws
        # the tables makes an exit with status 1 of it.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - the last resort: say so, with the place, and give the right status
        import traceback

        traceback.print_exc()
        print(f"internal error: {type(error).__name__}: {error}", file=sys.stderr)
        return INTERNAL_ERROR
    return status if isinstance(status, int) else 0


def main() -> None:
    """The entry point. Output is UTF-8 whatever the locale says: the same input gives the same bytes everywhere."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    status = run(sys.argv[1:])
    sys.exit(status)
