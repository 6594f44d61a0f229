"""Checks of the annotations that express preferences of jobs and pods, and of limits that nothing enforces.

The plugins that read them emit the same problems as events.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.model.annotations import (
    CARD_QUOTA,
    COOLDOWN_TIME,
    OVERCOMMIT_FACTOR,
    RESOURCE_STRATEGY_SCORING_TYPE,
    RESOURCE_STRATEGY_WEIGHT,
)
from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS
from capcard_sched.model.cards import no_card_quota
from capcard_sched.model.cooldown import COOLDOWN_FORM, cooldown_of
from capcard_sched.model.device_quota import DEVICE_QUOTA_FORM, device_quota_key, device_quota_problem
from capcard_sched.model.namespace_queues import circle
from capcard_sched.model.queue import ROOT
from capcard_sched.model.quoting import escaped
from capcard_sched.model.resources import CPU, MEMORY, PODS, VGPU_RESOURCES
from capcard_sched.model.strategies import STRATEGIES, WEIGHTS_FORM, StrategyError, parse_weights
from capcard_sched.model.task_topology import FORMS, topology_of
from capcard_sched.model.timestamps import DurationError, parse_duration
from capcard_sched.validation.checks import QUOTA_FORM, Finding, annotation_field, check_choice, listed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from capcard_sched.model.card_labels import CardLabels
    from capcard_sched.validation.checks import Severity, UnnamedCards

#: The accepted form of a declared duration.
RUNNING_ESTIMATE_FORM: Final = "a Go duration above 0, such as 90m or 2h30m"


def check_task_topology(
    annotations: Mapping[str, str], tasks: Collection[str] | None, *, severity: Severity = "error"
) -> list[Finding]:
    """Check `volcano.sh/task-topology-*` of a workload or PodGroup; `tasks` are its task names, None when unknown."""
    _, problems = topology_of(annotations, tasks)
    known = f"; tasks of the job: {listed(tasks)}" if tasks is not None and problems else ""
    return [
        Finding(
            severity,
            annotation_field(problem.key),
            f"{problem.detail}; the job's task topology is ignored",
            f"{FORMS[problem.key]}{known}",
        )
        for problem in problems
    ]


def check_scoring(annotations: Mapping[str, str], *, at: str = "metadata") -> list[Finding]:
    """Check `volcano.sh/resource-strategy-*` of a pod (template)."""
    strategy, weights = annotations.get(RESOURCE_STRATEGY_SCORING_TYPE), annotations.get(RESOURCE_STRATEGY_WEIGHT)
    field = annotation_field(RESOURCE_STRATEGY_WEIGHT, at)
    findings = [] if strategy is None else check_choice(RESOURCE_STRATEGY_SCORING_TYPE, strategy, STRATEGIES, at=at)
    if weights is None:
        if strategy is not None:
            message = f"is missing beside {RESOURCE_STRATEGY_SCORING_TYPE}: the pods are not scored"
            findings.append(Finding("warning", field, message, WEIGHTS_FORM))
        return findings
    try:
        parse_weights(weights)
    except StrategyError as error:
        findings.append(Finding("error", field, f"{error}; the pods are not scored", WEIGHTS_FORM))
    if strategy is None:
        message = f"is not read without {RESOURCE_STRATEGY_SCORING_TYPE}"
        findings.append(Finding("warning", field, message, " or ".join(f'"{choice}"' for choice in STRATEGIES)))
    return findings


def check_running_estimate(text: object, field: str) -> list[Finding]:
    """Check a duration that a job declares for itself: `capcard-sched.io/running-estimate` or `runningEstimate`."""
    if running_estimate(text) is not None:
        return []
    return [Finding("warning", field, f"{text!r} is ignored: no end is estimated from it", RUNNING_ESTIMATE_FORM)]


def running_estimate(text: object) -> float | None:
    """The declared seconds from the start of a job to its end; None for an invalid text."""
    try:
        seconds = parse_duration(text) if isinstance(text, str) else 0.0
    except DurationError:
        return None
    return seconds if seconds > 0 else None


def check_cooldown(labels: Mapping[str, str], annotations: Mapping[str, str], *, at: str = "metadata") -> list[Finding]:
    """Check `volcano.sh/cooldown-time` of a pod (template)."""
    cooldown = cooldown_of(labels, annotations, ())
    if cooldown is None or not cooldown.problem:
        return []
    field = f'{at}.labels["{COOLDOWN_TIME}"]' if cooldown.is_label else annotation_field(COOLDOWN_TIME, at)
    return [Finding("error", field, f"{cooldown.problem}; the pods are not protected", COOLDOWN_FORM)]


#: The plugin of card quotas; plugins that enforce all resources of a field.
_CARD_PLUGIN: Final = "capacity-card"
_RESOURCE_PLUGINS: Final[Mapping[str, frozenset[str]]] = {
    "capability": frozenset({"capacity", "proportion"}),
    "deserved": frozenset({"capacity"}),
    "guarantee": frozenset({"capacity", "proportion"}),
}
#: Arguments of `capacity` that let the keys of DeviceClasses limit devices, and capacities of devices.
DEVICE_COUNTS: Final = "capacity.DynamicResourceAllocationEnable"
DEVICE_CAPACITIES: Final = "capacity.DRAConsumableCapacityEnable"
#: Field of a Queue's spec to its path.
_PATHS: Final = {"capability": "spec.capability", "deserved": "spec.deserved", "guarantee": "spec.guarantee.resource"}
_TREE: Final = "the plugin capacity with enableHierarchy: true"


class QuotaPlugins(NamedTuple):
    """The plugins of a scheduler-conf, as far as they decide which limits of queues have an effect."""

    names: AbstractSet[str]
    #: Whether `capacity` has `enableHierarchy: true`: the limits of a queue cover the queues below it.
    is_tree: bool = False
    #: How `capacity-card` charges pods without a card name.
    unnamed_cards: UnnamedCards = "off"
    #: Whether queues without a card quota have no limit of cards (`queuesWithoutCardQuota: unlimited`).
    unlimited_cards: bool = False
    #: Whether `capacity` limits the devices of DeviceClasses, and capacities of them.
    device_counts: bool = False
    device_capacities: bool = False
    #: Whether `predicates` allocates devices to ResourceClaims.
    allocates_claims: bool = True
    #: The labels that name the models of devices.
    card_labels: CardLabels = DEFAULT_CARD_LABELS


def unenforced_limits(
    queue: str,
    limits: Mapping[str, Iterable[str]],
    annotations: Mapping[str, str],
    plugins: QuotaPlugins,
    *,
    is_parent: bool,
    shares: Collection[str] = (),
) -> list[Finding]:
    """Warnings about limits of one queue without effect, on its own jobs or on those of the queues below it.

    `limits`: `capability`, `deserved` and `guarantee` to their resources; `is_parent`: other queues name it as parent;
    `shares`: resources of shared devices, VGPU_RESOURCES when empty.
    """
    names = plugins.names
    found = _no_card_quota(queue, limits, annotations, plugins)
    for field, path in _PATHS.items():
        for resource in sorted(limits.get(field) or ()):
            share = resource in (shares or VGPU_RESOURCES)
            in_tree = share and field == "capability" and _CARD_PLUGIN in names
            problem = _device_quota_gap(resource, field, plugins)
            if problem is not None:
                found.append(Finding("warning", f'{path}["{resource}"]', *problem))
                continue
            if not (in_tree or _is_limited(field, resource, names)):
                message = f"not enforced: no plugin of the scheduler-conf limits {resource} by {field}"
                found.append(Finding("warning", f'{path}["{resource}"]', message, _accepted(field, resource, share)))
            elif is_parent and not in_tree and not (plugins.is_tree and "capacity" in names):
                message = f"not enforced for the queues below {queue}: only {_TREE} enforces it there"
                found.append(Finding("warning", f'{path}["{resource}"]', message, f"{_TREE}, or {field} in each queue"))
    if CARD_QUOTA in annotations and _CARD_PLUGIN not in names:
        message = f"not enforced: the scheduler-conf has no plugin {_CARD_PLUGIN}"
        found.append(Finding("warning", annotation_field(CARD_QUOTA), message, f"the plugin {_CARD_PLUGIN}"))
    if OVERCOMMIT_FACTOR in annotations and "overcommit" not in names:
        message = "not enforced: the scheduler-conf has no plugin overcommit"
        found.append(Finding("warning", annotation_field(OVERCOMMIT_FACTOR), message, "the plugin overcommit"))
    return found


def _device_quota_gap(resource: str, field: str, plugins: QuotaPlugins) -> tuple[str, str] | None:
    """Why a key of a DeviceClass has no effect, and the accepted form; None for one that has, and for other keys."""
    problem, key = device_quota_problem(resource), device_quota_key(resource)
    if problem:
        return f"not enforced: the key {problem}", DEVICE_QUOTA_FORM
    if key is None:
        return None
    if "capacity" not in plugins.names:
        return f"not enforced: no plugin of the scheduler-conf limits {resource} by {field}", "the plugin capacity"
    if not plugins.device_counts:
        return f"not enforced: {DEVICE_COUNTS} of the plugin capacity is false", f"{DEVICE_COUNTS}: true"
    if key.dimension and not plugins.device_capacities:
        return f"not enforced: {DEVICE_CAPACITIES} of the plugin capacity is false", f"{DEVICE_CAPACITIES}: true"
    return None


def _no_card_quota(
    queue: str, limits: Mapping[str, Iterable[str]], annotations: Mapping[str, str], plugins: QuotaPlugins
) -> list[Finding]:
    """A warning about a queue whose spec limits devices and that has no card quota: its pods get no card."""
    named = {resource for amounts in limits.values() for resource in amounts if plugins.card_labels.is_device(resource)}
    if not named or CARD_QUOTA in annotations or plugins.unlimited_cards or _CARD_PLUGIN not in plugins.names:
        return []
    message = f"{no_card_quota(queue)}: its pods get no card"
    accepted = f"{QUOTA_FORM}; or queuesWithoutCardQuota: unlimited of {_CARD_PLUGIN}"
    return [Finding("warning", annotation_field(CARD_QUOTA), message, accepted)]


def parent_problem(queue: str, parents: Mapping[str, str], missing: str) -> Finding | None:
    """A warning about a parent that is missing or part of a cycle. `parents`: each queue to its parent, "" for root.

    `missing`: the text that follows the name of a missing queue.
    """
    parent = parents.get(queue) or ROOT
    if parent != ROOT and parent not in parents:
        known = sorted(parents.keys() - {queue})
        close = difflib.get_close_matches(parent, known, n=1)
        meant = f'; did you mean "{close[0]}"?' if close else ""
        return Finding("warning", "spec.parent", f"queue {escaped(parent)} {missing}{meant}", ", ".join(known[:10]))
    chain = {queue: None}
    while parent != ROOT and parent in parents and parent not in chain:
        chain[parent] = None
        parent = parents[parent] or ROOT
    if parent != queue or parent == ROOT:
        return None
    message = f"the parents form a cycle: {circle([*chain, queue], ', ')}"
    return Finding("warning", "spec.parent", message, "parents that lead to root")


def _is_limited(field: str, resource: str, plugins: AbstractSet[str]) -> bool:
    """Whether a plugin limits the jobs of a queue by this resource of the field; none counts pods."""
    if resource in (CPU, MEMORY) and _CARD_PLUGIN in plugins:
        return True
    return resource != PODS and bool(plugins & _RESOURCE_PLUGINS[field])


def _accepted(field: str, resource: str, share: bool) -> str:
    plugins = f"the plugin {' or '.join(sorted(_RESOURCE_PLUGINS[field]))}"
    if resource == PODS:
        return "a ResourceQuota with the plugin resourcequota"
    if resource in (CPU, MEMORY):
        return f"{plugins} or {_CARD_PLUGIN}"
    if share:
        return f"the field capability with the plugin {_CARD_PLUGIN}, or {plugins}"
    # An extended resource: a device, or shares of cards under any name.
    return f"the annotation {CARD_QUOTA}, or {plugins}" if "/" in resource else plugins
