"""Hypothetical changes of a scenario, and the differences between the simulations before and after them."""

from __future__ import annotations

import copy
import json
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.controllers.objects import (
    JOB,
    POD,
    POD_GROUP,
    QUEUE,
    annotations_of,
    controller_of,
    has_ended,
    key_of,
    meta,
    spec,
    status,
)
from capcard_sched.framework.explain.stranded import StrandedReader
from capcard_sched.insight.estimates.job_runs import group_key, job_key, vcjob_key
from capcard_sched.insight.sources.changes import UnknownObjectError, set_card_quota, set_unschedulable
from capcard_sched.insight.trials.trial import changed_usage, figures_of
from capcard_sched.model.annotations import CARD_QUOTA
from capcard_sched.model.kube_groups import KUBE_GROUP, job_name
from capcard_sched.model.timestamps import parse_timestamp, span
from capcard_sched.model.trials import ChangedStranded, JobChange, PodCounts, RestartedPods, WhatIfReport
from capcard_sched.model.workload import display_name
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.kinds import NODE, RESOURCE_SLICE
from capcard_sched.simulation.scenario import Entry, Origin, in_creation_order
from capcard_sched.simulation.store import merged

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from capcard_sched.controllers.objects import JsonObject
    from capcard_sched.framework.core import Core
    from capcard_sched.simulation.run import SimulationOutcome
    from capcard_sched.simulation.scenario import Operation, Scenario
    from capcard_sched.simulation.store import Store

_HOSTNAME: Final = "kubernetes.io/hostname"
_ORIGIN: Final = Origin("what-if", 1)
#: Assigned by an API server; a copied node gets its own.
_ASSIGNED: Final = ("uid", "resourceVersion", "creationTimestamp", "managedFields")


#: Owners whose pods belong to a node: they are not drained.
_OF_NODES: Final = frozenset({"DaemonSet", "Node"})
#: Phases of pods that run or have run to their end.
_RUN: Final = frozenset({"Running", "Succeeded"})


class QuotaChange(NamedTuple):
    """Another quota of one card of a queue."""

    queue: str
    card: str
    quota: int


class JobStart(NamedTuple):
    """Start of a job."""

    #: Seconds from its creation until its minimum of pods runs; None: it has not started.
    wait: float | None
    #: Pods that run or have succeeded.
    pods: int


class NodeCopies(NamedTuple):
    """Further nodes like one of the input."""

    number: int
    template: str


_NO_START: Final = JobStart(None, 0)


def change_scenario(
    scenario: Scenario,
    *,
    quotas: Iterable[QuotaChange] = (),
    drained: Iterable[str] = (),
    copies: Iterable[NodeCopies] = (),
) -> Scenario:
    """The scenario with changes; the given one stays as it is.

    A drained node is unschedulable, and the pods bound to it are pending again, but for ended ones and those of
    DaemonSets. A quota holds for the whole simulation: operations of the timeline that set it set the given one. Raises
    UnknownObjectError.
    """
    entries = {(entry.kind, *key_of(entry.object)): entry for entry in scenario.entries}
    operations = list(scenario.operations)
    for change in quotas:
        created = [one for one in operations if one.verb == "create" and _is_queue(one, change.queue)]
        if (QUEUE, "", change.queue) in entries or not created:
            set_card_quota(_put(entries, QUEUE, change.queue), change.card, change.quota)
        operations = [_with_quota(one, change) if _is_queue(one, change.queue) else one for one in operations]
    for name in drained:
        _drain(entries, name)
    for more in copies:
        _copy_node(entries, more)
    return scenario._replace(entries=in_creation_order(entries.values()), operations=tuple(operations))


def overwritten_quotas(scenario: Scenario, quotas: Iterable[QuotaChange]) -> list[str]:
    """Operations of a timeline in whose place a quota change holds, in words."""
    return [
        f"--quota {change.queue}/{change.card}={change.quota} also replaces the quota of the timeline at "
        f"{span(one.at / SECOND)} ({one})"
        for change in quotas
        for one in scenario.operations
        if _is_queue(one, change.queue) and _with_quota(one, change) != one
    ]


def _is_queue(operation: Operation, name: str) -> bool:
    return operation.kind == QUEUE and operation.name == name


def _with_quota(operation: Operation, change: QuotaChange) -> Operation:
    """An operation that sets quotas, with that of the change."""
    notes = (operation.body.get("metadata") or {}).get("annotations") or {}
    if CARD_QUOTA not in notes and operation.verb != "create":
        return operation
    queue: JsonObject = copy.deepcopy(operation.body)
    queue["metadata"] = {"name": operation.name, **(queue.get("metadata") or {})}
    try:
        set_card_quota(queue, change.card, change.quota)
    except UnknownObjectError:  # malformed: all quotas of the queue are 0
        queue["metadata"]["annotations"] = {**notes, CARD_QUOTA: json.dumps({change.card: change.quota})}
    if operation.verb != "create":
        queue["metadata"] = {"annotations": annotations_of(queue)} | {
            key: value for key, value in operation.body["metadata"].items() if key != "annotations"
        }
    return operation._replace(body=queue)


def _put(entries: dict[tuple[str, str, str], Entry], kind: str, name: str) -> JsonObject:
    """A copy of a cluster-scoped object that replaces the original. Raises UnknownObjectError."""
    entry = entries.get((kind, "", name))
    if entry is None:
        known = sorted(key[2] for key in entries if key[0] == kind)
        raise UnknownObjectError(f"{kind} {name} does not exist; the input has {', '.join(known) or 'none'}")
    entry = entry._replace(object=copy.deepcopy(entry.object))
    entries[kind, "", name] = entry
    return entry.object


def _drain(entries: dict[tuple[str, str, str], Entry], name: str) -> None:
    set_unschedulable(_put(entries, NODE, name), value=True)
    for key, entry in entries.items():
        if key[0] == POD and _is_drained(entry.object, {name}):
            pod = copy.deepcopy(entry.object)
            del pod["spec"]["nodeName"]
            pod.pop("status", None)
            entries[key] = entry._replace(object=pod)


def _is_drained(pod: JsonObject, nodes: Collection[str]) -> bool:
    """Whether a pod ends when nodes are drained."""
    owner = controller_of(pod)
    is_of_node = owner is not None and owner["kind"] in _OF_NODES
    return spec(pod).get("nodeName") in nodes and not has_ended(pod) and not is_of_node


def _copy_node(entries: dict[tuple[str, str, str], Entry], more: NodeCopies) -> None:
    template = _put(entries, NODE, more.template)
    suffix = 0
    for _ in range(more.number):
        while (NODE, "", name := f"{more.template}-copy-{suffix}") in entries:
            suffix += 1
        node = copy.deepcopy(template)
        metadata = {key: value for key, value in meta(node).items() if key not in _ASSIGNED}
        labels = metadata.get("labels") or {}
        if _HOSTNAME in labels:
            metadata["labels"] = {**labels, _HOSTNAME: name}
        node["metadata"] = {**metadata, "name": name}
        entries[NODE, "", name] = Entry(NODE, node, _ORIGIN)
        _copy_slices(entries, more.template, name)


def _copy_slices(entries: dict[tuple[str, str, str], Entry], template: str, name: str) -> None:
    """Gives a copy of a node devices like those of the node: its ResourceSlices, in pools of its own."""
    slices = [spec(entry.object) for key, entry in entries.items() if key[0] == RESOURCE_SLICE]
    of_others = {_pool(each) for each in slices if each.get("nodeName") != template}
    for entry in [entry for key, entry in entries.items() if key[0] == RESOURCE_SLICE]:
        if spec(entry.object).get("nodeName") != template or _pool(spec(entry.object)) in of_others:
            continue
        found = copy.deepcopy(entry.object)
        metadata = {key: value for key, value in meta(found).items() if key not in _ASSIGNED}
        found["metadata"] = {**metadata, "name": f"{metadata['name']}-of-{name}"}
        pool = spec(found).get("pool") or {}
        renamed = name if pool.get("name") == template else f"{pool.get('name')}-of-{name}"
        found["spec"] = {**spec(found), "nodeName": name, "pool": {**pool, "name": renamed}}
        entries[RESOURCE_SLICE, "", found["metadata"]["name"]] = Entry(RESOURCE_SLICE, found, _ORIGIN)


def _pool(of_slice: JsonObject) -> tuple[object, object]:
    return of_slice.get("driver"), (of_slice.get("pool") or {}).get("name")


def compare_runs(
    changes: Sequence[str],
    before: tuple[Core, SimulationOutcome],
    after: tuple[Core, SimulationOutcome],
    *,
    scenario: Scenario | None = None,
    drained: Collection[str] = (),
) -> WhatIfReport:
    """The differences between two simulations. The cores hold the states at their ends, and a session of them.

    `scenario`: the input before the changes. `drained`: nodes that the changes drain.
    """
    (old_core, old), (new_core, new) = before, after
    restarts = _restarts(old_core, old, new_core, new, scenario, drained) if drained else ()
    restarted = {restart.job for restart in restarts if restart.wait is not None}
    starts_before, starts_after = _named(old_core, job_starts(old.store)), _named(new_core, job_starts(new.store))
    starts: list[JobChange] = []
    blocked: list[JobChange] = []
    moved: list[JobChange] = []
    pods: list[PodCounts] = []
    evictions, evictions_after = _evictions(old_core, old), _evictions(new_core, new)
    for job in sorted(starts_before.keys() | starts_after.keys()):
        was, pods_before = starts_before.get(job, _NO_START)
        now, pods_after = starts_after.get(job, _NO_START)
        change = JobChange(job=job, wait_before=was, wait_after=now)
        if was is None and now is not None:
            starts.append(change)
        elif was is not None and now is None:
            blocked.append(change)
        elif was != now and job not in restarted:
            moved.append(change)
        if was is not None and now is not None and pods_before != pods_after:
            pods.append(PodCounts(job=job, before=pods_before, after=pods_after))
    affected = {change.job for change in (*blocked, *moved)}
    return WhatIfReport(
        changes=tuple(changes),
        end_before=old.elapsed,
        end_after=new.elapsed,
        starts=tuple(starts),
        blocked=tuple(blocked),
        moved=tuple(moved),
        pods=tuple(pods),
        evictions=tuple(
            PodCounts(job=job, before=evictions[job], after=evictions_after[job])
            for job in sorted(evictions.keys() | evictions_after.keys())
            if evictions[job] != evictions_after[job]
        ),
        usage=changed_usage(figures_of(old_core), figures_of(new_core)),
        stranded=_changed_stranded(old_core, new_core),
        restarts=tuple(restart for restart in restarts if restart.job not in affected),
    )


def _changed_stranded(old: Core, new: Core) -> tuple[ChangedStranded, ...]:
    """By card. Without pods that request cards none is stranded."""
    before, after = (
        {card: one.stranded for card, one in (StrandedReader(core.snapshot()).by_card() or {}).items()}
        for core in (old, new)
    )
    amounts = {card: (before.get(card, 0.0), after.get(card, 0.0)) for card in sorted(before.keys() | after.keys())}
    return tuple(
        ChangedStranded(card=card, before=was, after=now) for card, (was, now) in amounts.items() if was != now
    )


def _restarts(
    old_core: Core,
    old: SimulationOutcome,
    new_core: Core,
    new: SimulationOutcome,
    scenario: Scenario | None,
    drained: Collection[str],
) -> tuple[RestartedPods, ...]:
    """Pods on drained nodes, by job: in the input, or, where it has none, at the end of the first simulation."""
    entries = scenario.entries if scenario is not None else ()
    bound = [merged({"metadata": {"namespace": "default"}}, one.object) for one in entries if one.kind == POD]
    given = Counter(_name(old_core, job_key(pod)) for pod in bound if _is_drained(pod, drained))
    later = Counter(_name(old_core, job_key(pod)) for pod in old.store.list(POD) if _is_drained(pod, drained))
    begin = EPOCH + new.begin / SECOND
    again: dict[str, list[float]] = {}
    for pod in new.store.list(POD):
        at = status(pod).get("startTime")
        if at and (seconds := parse_timestamp(at) - begin) >= 0:
            again.setdefault(_name(new_core, job_key(pod)), []).append(seconds)
    found = []
    for job in sorted(given | later):
        times = sorted(again.get(job, ()))
        wait = times[given[job] - 1] if 0 < given[job] <= len(times) else None
        found.append(RestartedPods(job=job, pods=given[job] or later[job], wait=wait))
    return tuple(found)


def job_starts(store: Store) -> dict[str, JobStart]:
    """The start of each job, by the key of its PodGroup, of a vcjob `namespace/job/name`: its PodGroup ends with it."""
    started: dict[str, list[float]] = {}
    pods: Counter[str] = Counter()
    for pod in store.list(POD):
        at = status(pod).get("startTime")
        if at:
            key = job_key(pod)
            started.setdefault(key, []).append(parse_timestamp(at))
            pods[key] += status(pod).get("phase") in _RUN
    found: dict[str, JobStart] = {}
    for group in store.list(POD_GROUP):  # a state has no Jobs
        key = group_key(group)
        found[key] = JobStart(_wait(group, spec(group).get("minMember"), started.get(key, ())), pods[key])
    for group in store.list(KUBE_GROUP):
        key = f"{key_of(group)[0]}/{job_name(key_of(group)[1])}"
        gang = (spec(group).get("schedulingPolicy") or {}).get("gang") or {}
        found[key] = JobStart(_wait(group, gang.get("minCount"), started.get(key, ())), pods[key])
    for vcjob in store.list(JOB):
        key = vcjob_key(vcjob)
        found[key] = JobStart(_wait(vcjob, spec(vcjob).get("minAvailable"), started.get(key, ())), pods[key])
    return found


def _wait(created: JsonObject, minimum: int | None, started: Iterable[float]) -> float | None:
    times, needed = sorted(started), max(minimum or 1, 1)
    if len(times) < needed:
        return None
    return max(times[needed - 1] - parse_timestamp(meta(created)["creationTimestamp"]), 0.0)


def _name(core: Core, key: str) -> str:
    """The name of a job that does not depend on generated uids, where its pods or PodGroup still exist."""
    job = core.snapshot().state.jobs.get(key)
    return (display_name(job) if job is not None else "") or key


def _named(core: Core, starts: Mapping[str, JobStart]) -> dict[str, JobStart]:
    """By name; of jobs with one name, such as two revisions of a Deployment, the first that starts, and all pods."""
    found: dict[str, JobStart] = {}
    for key, (wait, pods) in starts.items():
        name = _name(core, key)
        known, others = found.get(name, _NO_START)
        first = known if wait is None else wait if known is None else min(known, wait)
        found[name] = JobStart(first, pods + others)
    return found


def _evictions(core: Core, outcome: SimulationOutcome) -> Counter[str]:
    """By job."""
    return Counter(
        _name(core, f"{eviction.namespace}/{eviction.group or eviction.pod}") for eviction in outcome.evictions
    )
