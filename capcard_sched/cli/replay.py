"""`capcard-sched replay`: replays a daemon's recording offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from capcard_sched.cli.exit_codes import BadInputError, usage_error
from capcard_sched.cli.sources.cores import conf_text, valid_conf
from capcard_sched.model.quoting import plural
from capcard_sched.model.timestamps import format_timestamp

if TYPE_CHECKING:
    from rich.console import RenderableType

    from capcard_sched.daemon.diagnosis.replay import ReplayDifference, Replayed

#: Exit status: the recorded scheduler-conf leads to other decisions.
_CHANGED = 3


def replay(
    file: Path,
    /,
    *,
    scheduler_conf: Path | None = None,
    plugins_dir: Path | None = None,
    most: Annotated[int, Parameter(metavar="N")] = 20,
    output: Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"])] = "table",
    report: Annotated[Path | None, Parameter(show_default=False, metavar="FILE")] = None,
) -> int:
    """Replay a recording (`run --record`) offline and show where the decisions differ. Connects to nothing.

    Each step starts from the recorded history. Without --scheduler-conf the replay uses the recorded scheduler-conf and
    every decision must be the same.

    With --scheduler-conf the replay shows the decisions of that scheduler-conf at each step. After each step the state
    returns to the recorded history, so that one difference causes no others; a pod counts as bound earlier at the first
    step that would bind it. The replay does not continue from a changed decision: use `simulate` for that.

    Exit status: 0 when all decisions are the same, or with --scheduler-conf; 3 when the recorded scheduler-conf leads
    to other decisions; 2 on bad input; 1 on an internal error.

    Args:
        file: The recording. A truncated one is replayed up to its last complete line.
        scheduler_conf: Scheduler-conf file to use instead of the recorded one.
        plugins_dir: Folder with additional plugins and actions.
        most: Maximum number of differences to show.
        output: Output format.
        report: Write the page of the recorded end, with cards in use over time, to this HTML file (docs/web.md).
    """
    from capcard_sched.daemon.diagnosis.recording import RecordingError, RecordingReader
    from capcard_sched.daemon.diagnosis.replay import replay as replay_recording
    from capcard_sched.framework.conf.registry import Registry, RegistryError
    from capcard_sched.gc import settle_memory

    if most < 0:
        return usage_error(f"--most: {most} is negative")
    try:
        registry = Registry.load(plugins_dir)
        path = scheduler_conf
        conf = None if path is None else valid_conf(conf_text(path), str(path), registry)
        settle_memory()
        found = replay_recording(RecordingReader(file), registry, conf, most=most)
        if report is not None:
            _write_report(file, plugins_dir, report)
    except (BadInputError, RegistryError, RecordingError) as error:
        return usage_error(str(error))
    if output == "json":
        import msgspec

        from capcard_sched.cli.lists import print_document

        print_document({"same": found.same, **msgspec.to_builtins(found)}, "json")
    else:
        from capcard_sched.reports.terminal import console_for

        console = console_for()
        for part in _rendered(found, other=conf is not None):
            console.print(part, highlight=False, soft_wrap=isinstance(part, str), markup=False)
    return _CHANGED if conf is None and not found.same else 0


def _write_report(file: Path, plugins_dir: Path | None, report: Path) -> None:
    """Write the page of the end of a recording. Raises BadInputError."""
    from capcard_sched.cli.report import write_report
    from capcard_sched.cli.sources.inputs import RecordedInput
    from capcard_sched.cli.sources.source import Source
    from capcard_sched.cli.web_files import recorded_history

    given = RecordedInput(Source(plugins_dir=plugins_dir), file)
    found = given.load(read_only=True, headlines=True)
    write_report(report, found, str(file), recorded_history(file))


def _rendered(found: Replayed, *, other: bool) -> list[RenderableType]:
    """Notes, the result, the table of queues, the differences."""
    parts: list[RenderableType] = [f"note: {note}" for note in found.notes]
    size = f"{plural(found.steps, 'step')}, {plural(found.sessions, 'session')}, {plural(found.decisions, 'decision')}"
    if found.same:
        parts.append(f"unchanged: {size}")
    else:
        kinds = ", ".join(f"{count} {what}" for what, count in sorted(found.kinds.items(), key=lambda item: -item[1]))
        parts.append(f"changed: {size}; {plural(found.found, 'difference')}: {kinds}")
    if other and found.queues:
        parts.append(_queue_table(found))
    parts += map(_line, found.differences)
    left = found.found - len(found.differences)
    if left:
        parts.append(f"{plural(left, 'more difference')} (--most)")
    return parts


def _line(item: ReplayDifference) -> str:
    """`step 3 at 2026-01-01T00:00:03Z: Pod default/p, queue q: bound elsewhere: recorded n2, replayed n1`."""
    queue = f", queue {item.queue}" if item.queue else ""
    sides = ((item.recorded, "recorded"), (item.replayed, "replayed"))
    values = ", ".join(f"{side} {text}" for text, side in sides if text)
    rest = "".join(f": {text}" for text in (values, item.reason) if text)
    return f"step {item.step} at {format_timestamp(item.now)}: {item.object}{queue}: {item.what}{rest}"


def _queue_table(found: Replayed) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Pods by queue", title_justify="left", box=None, pad_edge=False)
    table.add_column("QUEUE")
    for name in ("BOUND", "SAME", "ELSEWHERE", "EARLIER", "NOT BOUND", "EXTRA"):
        table.add_column(name, justify="right")
    for queue in sorted(found.queues):
        row = found.queues[queue]
        figures = (row.bound, row.same, row.elsewhere, row.earlier, row.not_bound, row.extra)
        table.add_row(Text(queue or "-"), *map(str, figures))
    return table
