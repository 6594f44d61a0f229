"""`capcard-sched replay`: a daemon's recorded decisions made again, offline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from capcard_sched.cli.exit_codes import BAD_INPUT, refuse
from capcard_sched.model.timestamps import format_timestamp

if TYPE_CHECKING:
    from rich.console import RenderableType

    from capcard_sched.daemon.replay import ReplayDifference, Replayed
    from capcard_sched.framework.conf.registry import Registry
    from capcard_sched.framework.conf.scheduler_conf import Conf

#: The recorded conf came to other decisions.
_DIFFERENT = 3


def replay(
    file: Path,
    /,
    *,
    scheduler_conf: Path | None = None,
    plugins_dir: Path | None = None,
    most: Annotated[int, Parameter(metavar="N")] = 20,
    output: Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"])] = "table",
) -> int:
    """Make the decisions of a recorded daemon (`run --record`) again, and say where they differ. Nothing is contacted.

    Every step is decided given the recorded history up to it. Without --scheduler-conf the recorded one is used, and
    everything must come out the same.

    With --scheduler-conf the question to every step is: what would this scheduler-conf have decided here? Before the
    next step everything is put back to what really happened, so a difference does not lead to others, and a pod counts
    as bound earlier at the first step at which it would have been bound. How the day would have gone on from there is
    not answered: the recorded facts contradict it. That is what `simulate` is for.

    Exit status: 0 when everything is the same, or another scheduler-conf was tried; 3 when the recorded one decides
    otherwise; 2 on bad input; 1 on an internal error.

    Args:
        file: The recording; one that was cut off is replayed up to its last whole line.
        scheduler_conf: Decide under this scheduler-conf instead of the recorded ones.
        plugins_dir: Folder with further plugins and actions.
        most: Differences to show.
        output: What to print: a table for people, or one JSON object.
    """
    from capcard_sched.daemon.recording import RecordingError, RecordingReader
    from capcard_sched.daemon.replay import replay as decide_again
    from capcard_sched.framework.conf.registry import Registry, RegistryError
    from capcard_sched.gc import settle_memory

    if most < 0:
        return refuse(f"--most: {most} is negative")
    try:
        registry = Registry.load(plugins_dir)
        conf = None if scheduler_conf is None else _read_conf(scheduler_conf, registry)
        if conf is None and scheduler_conf is not None:
            return BAD_INPUT
        settle_memory()
        found = decide_again(RecordingReader(file), registry, conf, most=most)
    except (RegistryError, RecordingError) as error:
        return refuse(str(error))
    if output == "json":
        import msgspec

        document = {"same": found.same, **msgspec.to_builtins(found)}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
    else:
        from capcard_sched.reports.terminal import console_for

        console = console_for()
        for part in _rendered(found, other=conf is not None):
            console.print(part, highlight=False, soft_wrap=isinstance(part, str), markup=False)
    return _DIFFERENT if conf is None and not found.same else 0


def _read_conf(path: Path, registry: Registry) -> Conf | None:
    """The conf, or None after saying what is wrong."""
    from capcard_sched.framework.conf.scheduler_conf import parse_conf

    try:
        text = path.read_bytes()
    except OSError as error:
        refuse(f"{path}: {error.strerror or error}")
        return None
    result = parse_conf(text, registry=registry)
    for problem in result.problems:
        print(f"{problem.severity}: {path}: {problem.render()}", file=sys.stderr)
    if result.conf is None:
        refuse(f"{path}: this scheduler-conf cannot be used")
    return result.conf


def _rendered(found: Replayed, *, other: bool) -> list[RenderableType]:
    """What people read: notes, the verdict, the queues, the differences."""
    parts: list[RenderableType] = [f"note: {note}" for note in found.notes]
    size = f"{found.steps} steps, {found.sessions} sessions, {found.decisions} decisions"
    if found.same:
        parts.append(f"same: {size}, each decided as recorded")
    else:
        kinds = ", ".join(f"{count} {what}" for what, count in sorted(found.kinds.items(), key=lambda item: -item[1]))
        parts.append(f"different: {size}; {found.found} difference{'' if found.found == 1 else 's'}: {kinds}")
    if other and found.queues:
        parts.append(_queue_table(found))
    parts += map(_line, found.differences)
    left = found.found - len(found.differences)
    if left:
        parts.append(f"{left} more difference{'' if left == 1 else 's'} (--most)")
    return parts


def _line(item: ReplayDifference) -> str:
    """`step 3 at 2026-01-01T00:00:03Z: Pod default/p, queue q: bound elsewhere: n2 then, n1 here`."""
    queue = f", queue {item.queue}" if item.queue else ""
    told = ", ".join(f"{text} {when}" for text, when in ((item.then, "then"), (item.here, "here")) if text)
    rest = "".join(f": {text}" for text in (told, item.why) if text)
    return f"step {item.step} at {format_timestamp(item.now)}: {item.object}{queue}: {item.what}{rest}"


def _queue_table(found: Replayed) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Pods by queue", title_justify="left", box=None, pad_edge=False)
    table.add_column("QUEUE")
    for name in ("BOUND", "SAME", "ELSEWHERE", "EARLIER", "NOT BOUND", "ONLY HERE"):
        table.add_column(name, justify="right")
    for queue in sorted(found.queues):
        row = found.queues[queue]
        figures = (row.bound, row.same, row.elsewhere, row.earlier, row.not_bound, row.only_here)
        table.add_row(Text(queue or "-"), *map(str, figures))
    return table
