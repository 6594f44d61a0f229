"""The subcommands of `capcard-sched`. The module of a subcommand is imported on first use."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import cyclopts

from capcard_sched import __version__

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
app.command("capcard_sched.cli.controllers:controllers", name="controllers", help_formatter=whole_flags)
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
app.command("capcard_sched.cli.migrate:app", name="migrate")
app.command("capcard_sched.cli.usage:usage", name="usage")
app.command("capcard_sched.cli.usage:history", name="history")
app.command("capcard_sched.cli.usage:ledger_app", name="ledger")
app.command("capcard_sched.cli.cache:cache", name="cache")
app.command("capcard_sched.cli.web:web", name="web")
app.command("capcard_sched.cli.completion:completion", name="completion")
# Those of installed distributions; a name that is taken stays as it is.
for entry in metadata.entry_points(group="capcard_sched.commands"):
    if entry.name not in app:
        app.command(entry.value, name=entry.name)
