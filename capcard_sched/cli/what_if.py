"""`capcard-sched what-if`: effect of hypothetical changes on jobs, evictions and usage."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

import msgspec
from cyclopts import Parameter

from capcard_sched.cli.exit_codes import BadInputError, usage_error
from capcard_sched.cli.lists import print_document
from capcard_sched.cli.output import put_error
from capcard_sched.cli.sources.load import input_of
from capcard_sched.cli.sources.source import Source
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.simulation.clock import EPOCH, SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.cli.exit_codes import FailureWatch
    from capcard_sched.cli.sources.inputs import Input
    from capcard_sched.daemon.diagnosis.saved_state import SavedSettings
    from capcard_sched.framework.core import Core
    from capcard_sched.insight.what_if import NodeCopies, QuotaChange
    from capcard_sched.model.trials import WhatIfReport
    from capcard_sched.simulation.run import SimulationOutcome
    from capcard_sched.simulation.scenario import Scenario

#: Exit status: a job no longer starts, waits longer, or loses more pods to evictions.
WORSE: Final = 3
_QUOTA: Final = re.compile(r"(?P<queue>[^/=]+)/(?P<card>[^=]+)=(?P<quota>\d+)")
_COPIES: Final = re.compile(r"(?P<count>[1-9]\d{0,4})x(?P<template>.+)")


def what_if(
    *,
    add: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False, metavar="PATH")] = (),
    quota: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False, metavar="QUEUE/CARD=N")] = (),
    drain: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False, metavar="NODE")] = (),
    add_nodes: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False, metavar="NxNODE")] = (),
    conf: Annotated[Path | None, Parameter(show_default=False, metavar="FILE")] = None,
    save: Annotated[Path | None, Parameter(show_default=False, metavar="FILE")] = None,
    output: Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"])] = "text",
    source: Source = Source(),  # noqa: B008 - frozen
) -> int:
    """Show the effect of changes: jobs that start, added waiting time, evictions, usage, stranded cards.

    Simulates the input twice, as it is and with all changes, and compares the two ends. The input are the manifests of
    -f, the last state of a recording, or the state of a live cluster; writes nothing to it.

    Exit status: 0 when no job is worse off; 3 when a job no longer starts, waits longer or is evicted more; 2 on bad
    input; 1 on an internal error.

    Args:
        add: Manifests to add: file or folder. Repeatable.
        quota: Card quota of a queue: `team-a/NVIDIA-H200=24`. Repeatable.
        drain: Node to drain: unschedulable, its pods are pending again. Repeatable.
        add_nodes: Copies of an existing node: `4xgpu-node-1`. Repeatable.
        conf: Scheduler-conf file after the change. Default: the same as before.
        save: Write the changed input to this file, for `simulate -f` and `what-if -f`.
        output: Output format; JSON follows docs/what-if.schema.json.
        source: Flags that select the cluster.
    """
    from capcard_sched.insight.sources.changes import UnknownObjectError

    try:
        changes = describe_changes(add, quota, drain, add_nodes, conf)
        if not changes:
            raise BadInputError("no change: pass --add, --quota, --drain, --add-nodes or --conf")
        if add and "-" in (*source.file, *add):
            raise BadInputError("--add: the base is read twice, standard input only once; save it to a file")
        found = compare(input_of(source), changes, add, quota, drain, add_nodes, conf, save=save)
    except (BadInputError, UnknownObjectError) as error:
        return usage_error(str(error))
    report = found.report
    if output == "json":
        print_document(report, "json")
    else:
        from capcard_sched.reports.what_if import print_what_if

        print_what_if(report)
    return found.before.report() or found.after.report() or (WORSE if report.is_worse else 0)


class Compared(NamedTuple):
    """The differences, and what stepped the two cores."""

    report: WhatIfReport
    before: FailureWatch
    after: FailureWatch


def compare(
    given: Input,
    changes: Sequence[str],
    add: tuple[str, ...],
    quota: tuple[str, ...],
    drain: tuple[str, ...],
    add_nodes: tuple[str, ...],
    conf: Path | None,
    *,
    save: Path | None = None,
) -> Compared:
    """Simulate an input as it is and with changes; parameters as of the flags.

    `changes`: all of them in words. Prints warnings. Raises BadInputError and UnknownObjectError.
    """
    from capcard_sched.insight.what_if import change_scenario, compare_runs, overwritten_quotas

    scenario = given.scenario()
    more = given.scenario(*add) if add else scenario
    quotas = _quotas(quota)
    copies = [copies_of(text) for text in add_nodes]
    changed = change_scenario(more, quotas=quotas, drained=drain, copies=copies)
    _warn_of_unknown_cards(quotas, changed)
    for text in overwritten_quotas(more, quotas):
        put_error(f"warning: {text}")
    old_conf = given.source.scheduler_conf
    new_conf = conf or old_conf
    if save is not None:
        _save(changed, given.settings, new_conf, save)
    before, watched = _run(given, scenario, old_conf, "before the changes")
    after, also_watched = _run(given, changed, new_conf, "with the changes")
    for warning in dict.fromkeys((*before[1].warnings, *after[1].warnings)):
        put_error(f"warning: {warning}")
    report = compare_runs(changes, before, after, scenario=more, drained=drain)
    return Compared(report, watched, also_watched)


def _run(
    given: Input, scenario: Scenario, conf: Path | None, which: str
) -> tuple[tuple[Core, SimulationOutcome], FailureWatch]:
    core = given.core(conf, simulated=True)
    watched, outcome = given.simulate(scenario, core, verb=f"simulating {which}")
    core.apply_all(outcome.deltas)
    watched.full_session(EPOCH + outcome.end / SECOND, read_only=True)
    return (core, outcome), watched


def describe_changes(
    add: tuple[str, ...], quota: tuple[str, ...], drain: tuple[str, ...], add_nodes: tuple[str, ...], conf: Path | None
) -> list[str]:
    """The changes as on the command line."""
    flags = (("--add", add), ("--quota", quota), ("--drain", drain), ("--add-nodes", add_nodes))
    found = [f"{flag} {value}" for flag, values in flags for value in values]
    return [*found, f"--conf {conf}"] if conf is not None else found


def _quota(text: str) -> QuotaChange:
    from capcard_sched.insight.what_if import QuotaChange

    found = _QUOTA.fullmatch(text)
    if found is None:
        raise BadInputError(f"--quota: {text!r}: expected QUEUE/CARD=N, such as team-a/NVIDIA-H200=24")
    return QuotaChange(found["queue"], found["card"], int(found["quota"]))


def _quotas(texts: Sequence[str]) -> list[QuotaChange]:
    """The changes of quotas, each of another card. Raises BadInputError."""
    found: dict[tuple[str, frozenset[str]], str] = {}
    changes = []
    for text in texts:
        change = _quota(text)
        if change.card in (CPU, MEMORY):
            accepted = "another spec.capability of the queue in the input"
            raise BadInputError(f"--quota: {text!r}: {change.card} is a resource, not a card; accepted: {accepted}")
        first = found.setdefault((change.queue, frozenset(change.card.split("|"))), text)
        if first != text:
            raise BadInputError(f"--quota: {first!r} and {text!r} are quotas of one card of queue {change.queue}")
        changes.append(change)
    return changes


def _warn_of_unknown_cards(quotas: Sequence[QuotaChange], scenario: Scenario) -> None:
    """A quota of a card without nodes is allowed: nodes come later. A misspelt one has no effect."""
    from capcard_sched.framework.explain.sentences import nearest
    from capcard_sched.insight.sources.claim_checks import device_cards
    from capcard_sched.validation.inventory import Inventory

    objects = [entry.object for entry in scenario.entries] if quotas else []
    known = {**Inventory(objects).cards, **device_cards(objects)}
    for card in [card for change in quotas for card in change.card.split("|")]:
        if card not in known:
            meant = f"; did you mean {close}?" if (close := nearest(card, known)) else ""
            put_error(f"warning: --quota: no node provides card {card}{meant}")


def copies_of(text: str) -> NodeCopies:
    """The copies of `NxNODE`. Raises BadInputError."""
    from capcard_sched.insight.what_if import NodeCopies

    found = _COPIES.fullmatch(text)
    if found is None:
        raise BadInputError(f"--add-nodes: {text!r}: expected NxNODE, such as 4xgpu-node-1")
    return NodeCopies(int(found["count"]), found["template"])


def _save(changed: Scenario, settings: SavedSettings | None, conf: Path | None, path: Path) -> None:
    """Write the objects of a scenario, with settings under a scheduler-conf file where there are settings."""
    from capcard_sched.daemon.diagnosis.saved_state import document_of
    from capcard_sched.simulation.manifests import read_file, to_json
    from capcard_sched.simulation.scenario import as_manifests

    document = as_manifests(changed)
    try:
        if settings is not None:
            if conf is not None:
                settings = msgspec.structs.replace(settings, scheduler_conf=read_file(conf).decode())
            document = document_of(settings, document["items"])
        path.write_text(to_json(document), "utf-8")
    except OSError as error:
        raise BadInputError(f"--save: {error.filename or path}: {error.strerror or error}") from None
