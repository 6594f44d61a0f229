"""The tree of a gang: `spec.subGroupPolicy` of a PodGroup divides its pods into subgroups with minimums of their own.

A job contains subgroups, a subgroup contains pods. A subgroup is ready with `size` pods; a policy demands a number of
ready subgroups. Pods that no policy selects are the rest: they count for the minimums of the job alone.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from capcard_sched.model.decode_errors import field_problem
from capcard_sched.model.hyper_nodes import NetworkTopology, network_topology
from capcard_sched.model.objects import ApiStruct, LabelSelector, NetworkTopologySpec
from capcard_sched.model.quoting import plural
from capcard_sched.model.reasons import NOT_ENOUGH_SUBGROUPS
from capcard_sched.model.selectors import label_selector_problem, matches_labels
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from capcard_sched.model.task_class import TaskClass

_READY: Final = (
    *(TaskStatus.BOUND, TaskStatus.BINDING, TaskStatus.RUNNING),
    *(TaskStatus.ALLOCATED, TaskStatus.SUCCEEDED),
)
#: Of members that exist and are not ending.
_LIVE: Final = (*_READY, TaskStatus.PIPELINED, TaskStatus.PENDING)
#: Index of pending members that request nothing in the counters of a subgroup.
_BEST_EFFORT: Final = len(TaskStatus)


class SubGroupPolicySpec(ApiStruct, frozen=True):
    """One entry of `spec.subGroupPolicy`."""

    name: str = ""
    label_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] | None = None
    sub_group_size: int | None = None
    min_sub_groups: int | None = None
    network_topology: NetworkTopologySpec | None = None


class GroupPolicy(msgspec.Struct, frozen=True):
    """A policy with its defaults."""

    name: str
    #: Selects the pods; None selects all of them.
    selector: LabelSelector | None = None
    #: Labels whose values identify a subgroup; without any, the policy has one subgroup.
    keys: tuple[str, ...] = ()
    #: Pods that make a subgroup ready.
    size: int = 1
    #: Ready subgroups that the job needs.
    minimum: int = 0
    topology: NetworkTopology | None = None
    #: Whether the selector is invalid: the policy then selects no pod.
    invalid: bool = False

    def values_of(self, labels: Mapping[str, str]) -> tuple[str, ...] | None:
        """The identity of the subgroup of a pod with these labels; None for a pod that the policy does not select."""
        if self.invalid or not (self.selector is None or matches_labels(self.selector, labels)):
            return None
        values = tuple(labels.get(key, "") for key in self.keys)
        return values if all(values) else None


class CountedPod(Protocol):
    """What counts of a task."""

    uid: str
    cls: TaskClass
    labels: Mapping[str, str]
    status: TaskStatus
    gated: bool


class SubGroup(NamedTuple):
    """The identity of a subgroup in its job."""

    #: Position of its policy.
    policy: int
    values: tuple[str, ...]


def subgroup_of(policies: Sequence[GroupPolicy], labels: Mapping[str, str]) -> SubGroup | None:
    """The subgroup of a pod with these labels: that of the first policy that selects it; None for the rest."""
    for number, policy in enumerate(policies):
        values = policy.values_of(labels)
        if values is not None:
            return SubGroup(number, values)
    return None


def group_policies(raw: object, problems: list[str]) -> tuple[GroupPolicy, ...]:
    """`spec.subGroupPolicy`. An invalid entry adds a line to `problems`.

    A policy with the name of an earlier one, or without a name, is left out. One with an invalid selector selects
    nothing, so that its minimum stays unmet. Sizes and minimums below their bound count as the bound.
    """
    if raw is None:
        return ()
    found: dict[str, GroupPolicy] = {}
    for number, entry in enumerate(raw if isinstance(raw, list | tuple) else [raw]):
        at = f"spec.subGroupPolicy[{number}]"
        try:
            one = msgspec.convert(entry, SubGroupPolicySpec)
        except msgspec.ValidationError as error:
            problems.append(f"{field_problem(error, entry).within(at)}; the policy selects no pod")
            name = entry.get("name") if isinstance(entry, dict) else None
            key = name if isinstance(name, str) and name not in found else at
            found[key] = GroupPolicy(key, minimum=1, invalid=True)
            continue
        if not one.name or one.name in found:
            problems.append(f"{at}.name: {one.name!r}: expected a name of its own; the policy is ignored")
            continue
        size, minimum = one.sub_group_size, one.min_sub_groups
        for field, value, least in (("subGroupSize", size, 1), ("minSubGroups", minimum, 0)):
            if value is not None and value < least:
                problems.append(f"{at}.{field}: {value}: expected a whole number from {least}; taken as {least}")
        bad = label_selector_problem(one.label_selector)
        if bad:
            problems.append(f"{at}.labelSelector: {bad}; the policy selects no pod")
        found[one.name] = GroupPolicy(
            one.name,
            one.label_selector,
            tuple(one.match_label_keys or ()),
            1 if size is None else max(1, size),
            max(0, minimum or 0),
            network_topology(one.network_topology, problems, f"{at}.networkTopology"),
            invalid=bool(bad),
        )
    return tuple(found.values())


class SubGroups:
    """The subgroups of a job and their counters, which the state keeps exact at every change of a task."""

    __slots__ = ("_by_uid", "counts", "has_topology", "policies")

    def __init__(self, policies: tuple[GroupPolicy, ...]) -> None:
        self.policies: Final = policies
        #: Whether some policy has a network topology.
        self.has_topology: Final = any(policy.topology is not None for policy in policies)
        #: Members of each subgroup per status, indexed by TaskStatus, then pending ones that request nothing.
        self.counts: dict[SubGroup, list[int]] = {}
        self._by_uid: dict[str, SubGroup | None] = {}

    @property
    def least_pods(self) -> int:
        """The pods of the subgroups that the minimums of all policies demand."""
        return sum(policy.size * policy.minimum for policy in self.policies)

    # --- changes of tasks, by the state alone -----------------------------------------------------------------------

    def add(self, task: CountedPod) -> None:
        """Count a task, in the subgroup that its labels name now."""
        group = self._by_uid[task.uid] = subgroup_of(self.policies, task.labels)
        if group is not None:
            counts = self.counts.setdefault(group, [0] * (_BEST_EFFORT + 1))
            counts[task.status] += 1
            counts[_BEST_EFFORT] += _waits_for_nothing(task)

    def subtract(self, task: CountedPod) -> None:
        """Undo `add`, before the task changes."""
        group = self._by_uid.pop(task.uid, None)
        if group is not None:
            counts = self.counts[group]
            counts[task.status] -= 1
            counts[_BEST_EFFORT] -= _waits_for_nothing(task)
            if not any(counts):
                del self.counts[group]

    def shift(self, tasks: Iterable[CountedPod], before: TaskStatus, after: TaskStatus) -> None:
        """Count tasks in another status."""
        for task in tasks:
            group = self._by_uid[task.uid]
            if group is None:
                continue
            counts = self.counts[group]
            counts[before] -= 1
            counts[after] += 1
            if task.cls.best_effort:
                counts[_BEST_EFFORT] += (after is TaskStatus.PENDING) - (before is TaskStatus.PENDING)

    # --- results ----------------------------------------------------------------------------------------------------

    def of(self, task: CountedPod) -> SubGroup | None:
        """The subgroup of a task of the job; None for the rest."""
        return self._by_uid.get(task.uid)

    def size_of(self, group: SubGroup) -> int:
        """The number of pods that make a subgroup ready."""
        return self.policies[group.policy].size

    def bound_of(self, group: SubGroup) -> int:
        """The placed and the succeeded members of a subgroup."""
        c = self.counts.get(group)
        return 0 if c is None else sum(c[status] for status in _READY)

    def ready_of(self, group: SubGroup, *, pipelined: bool = False) -> int:
        """Members that count as placed: also pending ones that request nothing, and with `pipelined` nominated ones."""
        c = self.counts.get(group)
        if c is None:
            return 0
        return self.bound_of(group) + c[_BEST_EFFORT] + (c[TaskStatus.PIPELINED] if pipelined else 0)

    def with_size(self, statuses: Iterable[TaskStatus], *, best_effort: bool) -> list[int]:
        """By policy, the number of subgroups with their size in some statuses.

        `best_effort`: pending members that request nothing count, too.
        """
        reached = [0] * len(self.policies)
        for group, counts in self.counts.items():
            members = sum(counts[status] for status in statuses) + (counts[_BEST_EFFORT] if best_effort else 0)
            if members >= self.policies[group.policy].size:
                reached[group.policy] += 1
        return reached

    def reach(self, statuses: Iterable[TaskStatus], *, best_effort: bool) -> bool:
        """Whether each policy has its minimum of subgroups with their size in some statuses."""
        return self._is_enough(self.with_size(statuses, best_effort=best_effort))

    def ready(self, *, pipelined: bool = False) -> list[int]:
        """By policy, the number of ready subgroups; with `pipelined`, nominated pods count as placed."""
        statuses = (*_READY, TaskStatus.PIPELINED) if pipelined else _READY
        return self.with_size(statuses, best_effort=True)

    def complete(self) -> list[int]:
        """By policy, the number of subgroups whose pods exist, without those that end."""
        return self.with_size(_LIVE, best_effort=False)

    def is_torn(self) -> bool:
        """Whether a subgroup below its size has members placed and members nominated."""
        return any(
            counts[TaskStatus.PIPELINED] and 0 < self.bound_of(group) < self.size_of(group)
            for group, counts in self.counts.items()
        )

    def need(self, gated: Mapping[str, object]) -> bool:
        """Whether a minimum is out of reach without these tasks (by uid)."""
        without = Counter(self._by_uid.get(uid) for uid in gated)
        reached = [0] * len(self.policies)
        for group, counts in self.counts.items():
            if sum(counts[status] for status in _LIVE) - without[group] >= self.policies[group.policy].size:
                reached[group.policy] += 1
        return not self._is_enough(reached)

    def missing(self, reached: Sequence[int]) -> list[int]:
        """By policy, the number of subgroups below the minimum; `reached`: those it has."""
        return [max(0, policy.minimum - count) for policy, count in zip(self.policies, reached, strict=True)]

    def _is_enough(self, reached: Sequence[int]) -> bool:
        return not any(self.missing(reached))


def _waits_for_nothing(task: CountedPod) -> bool:
    return task.status is TaskStatus.PENDING and task.cls.best_effort and not task.gated


def shortages_of(groups: SubGroups, found: Sequence[int], verb: str) -> list[str]:
    """One line per policy below its minimum. `found`: subgroups by policy, with the state that `verb` names."""
    return [
        NOT_ENOUGH_SUBGROUPS.render(
            policy=policy.name, found=count, minimum=policy.minimum, size=plural(policy.size, "pod"), verb=verb
        )
        for count, policy in zip(found, groups.policies, strict=True)
        if count < policy.minimum
    ]
