"""Renders a `JobDiagnosis` as text: the cause in the first line, then the facts, limits, pods, nodes and fixes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from capcard_sched.model.annotations import RUNNING_ESTIMATE
from capcard_sched.model.quantity import shown_amount
from capcard_sched.model.quoting import brief, escaped, plural
from capcard_sched.model.status import PodGroupPhase
from capcard_sched.model.timestamps import format_timestamp, parse_timestamp, span
from capcard_sched.reports.fixes import render_fixes, sentence
from capcard_sched.reports.terminal import console_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from capcard_sched.model.diagnosis import ExpectedStart, JobDiagnosis, LimitUse, PendingPods, PodRefusal
    from capcard_sched.model.explanation import EvictedPod, VictimsConsidered

#: Outcome of the last attempt to its text.
_OUTCOMES: Final = {
    "refused": "rejected",
    "unfit": "no node fits",
    "schedulable": "fits{on}; waiting for gang",
    "pipelined": "nominated{to}; waiting for victims to terminate",
    "untried": "not tried in the last session",
}
#: Columns of a line without a terminal: no text is that long.
_PLAIN_WIDTH: Final = 100_000
#: Basis of an estimate to its text.
_SOURCES: Final = {
    "Annotation": RUNNING_ESTIMATE,
    "RunningEstimate": "runningEstimate",
    "ActiveDeadline": "activeDeadlineSeconds",
    "Simulation": "simulated duration",
    "Termination": "its pods are terminating",
    "Unknown": "no estimate",
}
_DONE: Final = frozenset({"Scheduled", "Finished"})


def print_diagnosis(found: JobDiagnosis) -> None:
    """Print a diagnosis on standard output: without line breaks and trailing spaces where it is not a terminal."""
    # Commands are not wrapped: a copied line break would end the command.
    console_for(plain_width=_PLAIN_WIDTH).print(render(found), crop=False)


def render(found: JobDiagnosis) -> RenderableType:
    """The whole diagnosis; the first line is the cause."""
    found = _escaped(found)
    parts: list[RenderableType] = [
        Text.assemble((f"{found.namespace}/{found.workload}: ", "bold"), sentence(found.summary)),
        *(Text(f"  {sentence(fact)}") for fact in found.facts),
        *_problems(found),
        *(render_fixes(found.fixes) if found.fixes is not None else ()),
        Text(""),
        _head(found),
    ]
    parts += _limits(found)
    parts += _pods(found)
    parts += _victims(found.victims)
    if found.eviction_events:
        parts += [Text(""), *(Text(f"Evicted earlier: {text}") for text in found.eviction_events)]
    else:  # a recording has no events
        parts += _evicted(found.evicted)
    return Group(*parts)


def _escaped(value: Any) -> Any:
    """A diagnosis whose texts are one line each: line breaks in names of objects are escapes."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, msgspec.Struct):
        return type(value)(**{name: _escaped(getattr(value, name)) for name in value.__struct_fields__})
    return tuple(map(_escaped, value)) if isinstance(value, (tuple, list)) else value


def _problems(found: JobDiagnosis) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for problem in found.problems:
        text = f"{problem.object}: {problem.field}: {problem.message}"
        if problem.accepted:
            text += f"; accepted: {problem.accepted}"
        parts.append(Text.assemble((f"{problem.severity}: ", "yellow"), text))
    return parts


def _head(found: JobDiagnosis) -> Table:
    """Labels and values, as in `kubectl describe`."""
    table = _grid("", "")
    table.show_header = False
    table.add_row("Stage:", found.stage_text)
    if found.queue is not None:
        name = found.queue.name.removeprefix("/")  # of an invalid reference
        table.add_row("Queue:", f"{name} ({found.queue.state})")
        if found.queue.position:
            ahead = found.queue.ahead
            after = f", behind {brief(ahead)}" if ahead else ""
            table.add_row("Position:", f"{found.queue.position} of the pending jobs of the queue{after}")
    is_pending = found.stage not in _DONE and found.stage != "Degraded"
    waiting = f", pending for {span(found.waiting_seconds)}" if is_pending else ""
    least = f", minAvailable {found.min_available}" if found.min_available else ""
    table.add_row("Pods:", f"{found.scheduled}/{found.pods} scheduled{least}{waiting}")
    if found.expected_start is not None:
        table.add_row("Expected start:", describe_start(found.expected_start))
    if found.pod_group:
        table.add_row("PodGroup:", f"{found.pod_group} (phase {found.phase})")
    for refusal in found.refusals:
        table.add_row("Message:", f"{refusal.message} [{_source(refusal)}]")
    return table


def describe_start(found: ExpectedStart) -> str:
    """An expected start in one line: `in 2h (p10 1h30m, p90 3h), when default/job/a ends (12 like jobs)`."""
    if found.p50 is None:
        return found.reason if found.reason.startswith(("never", "unknown")) else f"unknown: {found.reason}"
    at = format_timestamp(parse_timestamp(found.computed_at) + found.p50)
    text = f"in {span(found.p50)}, at {at}"
    if found.runs > 1:
        late = "unknown" if found.p90 is None else span(found.p90)
        text += f" (p10 {span(found.p10 or 0.0)}, p90 {late})"
    if found.awaited:
        text += f", when {found.awaited[0].workload} ends ({basis_of(found)})"
    return f"{text}; {found.reason}" if found.reason else text


def start_cells(found: ExpectedStart) -> tuple[str, str, str]:
    """Median, 90th percentile and basis, as cells of a list."""
    if found.p50 is None:
        never = "never" if found.reason.startswith("never") else "unknown"
        return never, never, found.reason.removeprefix("never: ")
    late = "unknown" if found.p90 is None else span(found.p90)
    return span(found.p50), late, basis_of(found) or "free capacity"


def basis_of(found: ExpectedStart) -> str:
    """The basis of an expected start: `12 like jobs`, `runningEstimate`; "" for a start that awaits no end."""
    return ", ".join(
        dict.fromkeys(
            plural(one.like_jobs, "like job") if one.source == "LikeJobs" else _SOURCES[one.source]
            for one in found.awaited
        )
    )


def _source(refusal: PodRefusal) -> str:
    return f"{refusal.plugin or 'scheduler'}, {refusal.hook}"


def _grid(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False)


def _indented(table: Table) -> RenderableType:
    return Padding(table, (0, 0, 0, 2))


# --- limits ---------------------------------------------------------------------------------------------------------


def _limits(found: JobDiagnosis) -> list[RenderableType]:
    if found.queue is None or not found.queue.limits:
        return []
    table = _grid()
    for name in ("QUEUE", "CARD OR RESOURCE", "QUOTA", "USED", "RESERVED", "FREE", "CLUSTER TOTAL"):
        table.add_column(name, justify="left" if name in {"QUEUE", "CARD OR RESOURCE"} else "right", no_wrap=True)
    for row in found.queue.limits:
        table.add_row(row.queue, row.resource, *_limit_cells(row))
    return [Text(""), table]


def _limit_cells(row: LimitUse) -> list[str]:
    used, reserved = shown_amount(row.resource, row.used), shown_amount(row.resource, row.reserved)
    total = "" if row.quota is not None else "-"
    if row.cluster_total is not None:
        total = shown_amount(row.resource, row.cluster_total) if row.cluster_total else "none"
    if (
        row.quota is None or not row.is_set
    ):  # a queue without a quota, or pods that accept either card: quotas are per single card
        return ["-" if "|" in row.resource else "no limit", used, reserved, "-", total]
    free = shown_amount(row.resource, (row.free if row.usable is None else row.usable) or 0.0)
    return [shown_amount(row.resource, row.quota), used, reserved, free, total]


# --- pods -----------------------------------------------------------------------------------------------------------


def _pods(found: JobDiagnosis) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for item in found.pending:
        parts.append(Text(""))
        parts += _pending(item, found)
    if found.placed and found.stage not in _DONE:
        table = _grid("SCHEDULED PODS", "CARD", "NODE", "STATUS")
        for pods in found.placed:
            table.add_row(brief(pods.names), pods.card or "-", pods.node, pods.status)
        parts += [Text(""), table]
    return parts


def _pending(item: PendingPods, found: JobDiagnosis) -> list[RenderableType]:
    """The reasons of pods with one template; refusals of the job are not repeated for its pods."""
    head = (f"{brief(item.names)}: ", "bold")
    if item.refusal is not None and any(item.refusal.message == other.message for other in found.refusals):
        is_refused = found.phase in {"", PodGroupPhase.PENDING.value} and found.stage != "NotProcessed"
        untried = "no domain fits the gang" if item.refusal.hook == "hyper_node_order" else _OUTCOMES["untried"]
        return [Text.assemble(head, "PodGroup not admitted" if is_refused else untried)]
    on, to = (f" on {item.node}", f" to {item.node}") if item.node else ("", "")
    parts: list[RenderableType] = [Text.assemble(head, _OUTCOMES[item.outcome].format(on=on, to=to))]
    if item.message and item.outcome in {"refused", "unfit"}:
        source = f" [{_source(item.refusal)}]" if item.refusal is not None else ""
        parts.append(Text(f"  {item.message}{source}"))
    if item.nodes:
        table = _grid("NODES", "REASON", "PLUGIN, HOOK")
        for row in item.nodes:
            table.add_row(str(row.nodes), row.reason, f"{row.plugin or 'scheduler'}, {row.hook}")
        parts.append(_indented(table))
    if item.nearest:
        table = _grid("NEAREST NODE", "DEVICE")
        for node in item.nearest:
            for index, text in enumerate(node.texts):
                table.add_row("" if index else node.node, Text(text))
        parts.append(_indented(table))
    return parts


def _victims(considered: Sequence[VictimsConsidered]) -> list[RenderableType]:
    """`preempt: no preemption victims for w-0 on 3 nodes; not eligible: 2 pods of other queues`."""
    parts: list[RenderableType] = [Text("")] if considered else []
    for item in considered:
        text = "; ".join([f"no preemption victims for {item.pod} on {plural(item.nodes, 'node')}", *item.searched()])
        parts.append(Text.assemble((f"{item.action}: ", "bold"), text))
    return parts


def _evicted(pods: Sequence[EvictedPod]) -> list[RenderableType]:
    if not pods:
        return []
    table = _grid("EVICTED", "ACTION", "NODE", "PREEMPTOR", "QUEUE")
    for pod in pods:
        table.add_row(pod.pod, pod.action, pod.node, pod.by or "-", pod.queue or "-")
    return [Text(""), table]
