"""The units in which the pods of a job with subgroups are placed, and their order."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.groups import SubGroup
    from capcard_sched.model.job import Job, Task


#: Units whose sums are compared: one object may have thousands.
_MOST_COMPARED: Final = 256


class GroupUnit(NamedTuple):
    """The pods that a subgroup lacks, placed together; or a single pod: of the rest, or beyond the size."""

    #: None for a pod of the rest.
    group: SubGroup | None
    #: Pending pods in task order: the candidates.
    tasks: tuple[Task, ...]
    #: The number of them that are placed.
    need: int
    #: Whether the subgroup is ready then.
    completes: bool
    #: Whether it has members already.
    is_begun: bool


class GroupUnits(NamedTuple):
    """The units of a job."""

    #: Of subgroups that are not ready, in order.
    groups: list[GroupUnit]
    #: Single pods: of the rest, and of ready subgroups, in task order.
    singles: list[GroupUnit]
    #: Subgroups of which not enough pods exist, with their pending pods.
    incomplete: dict[SubGroup, list[Task]]


def units_of(session: Session, job: Job, pending: Sequence[Task]) -> GroupUnits:
    """The units of pending pods, which are in task order.

    Subgroups that the minimums need precede the others, the first one of each policy before the second of any. Among
    those of one policy: begun ones, then by the task order of plugins, by the first value of the labels as a number,
    and by the values. A begun subgroup without all its pods takes those that exist.
    """
    groups = job.groups
    assert groups is not None
    members: dict[SubGroup, list[Task]] = {}
    found = GroupUnits([], [], {})
    for task in pending:
        group = groups.of(task)
        if group is None or groups.ready_of(group) >= groups.size_of(group):
            found.singles.append(GroupUnit(group, (task,), 1, completes=False, is_begun=group is not None))
        else:
            members.setdefault(group, []).append(task)
    missing = groups.missing(groups.ready())
    ordered: list[tuple[tuple[Any, ...], GroupUnit]] = []
    for policy in sorted({group.policy for group in members}):
        units = []
        for group, tasks in members.items():
            if group.policy != policy:
                continue
            need, begun = groups.size_of(group) - groups.ready_of(group), groups.bound_of(group) > 0
            if len(tasks) < need and not begun:
                found.incomplete[group] = tasks
                continue
            unit = GroupUnit(group, tuple(tasks), min(need, len(tasks)), len(tasks) >= need, begun)
            keys = min(session.dispatch.keys("task_order", task) for task in tasks)
            units.append(((not unit.completes, not begun, keys, *_values_key(group)), unit))
        units.sort(key=lambda entry: entry[0])
        for rank, (key, unit) in enumerate(units):
            is_required = unit.completes and rank < missing[policy]
            ordered.append(((0, rank, policy) if is_required else (1, *key[:3], policy, *key[3:]), unit))
    ordered.sort(key=lambda entry: entry[0])
    found.groups.extend(unit for _, unit in ordered)
    return found


def next_unit(job: Job, waiting: Sequence[GroupUnit]) -> int:
    """The position of the unit to place next, so that few pods complete the minimums; `waiting` is in order.

    Subgroups that a policy lacks come first, then units with pods that a role lacks, then those whose sizes exceed what
    `minMember` lacks least. Nominated pods count as placed.
    """
    groups = job.groups
    assert groups is not None
    missing = groups.missing(groups.ready(pipelined=True))
    for position, unit in enumerate(waiting):
        if unit.completes and unit.group is not None and missing[unit.group.policy]:
            return position
    if roles := job.missing_of_roles(pipelined=True):
        needed = [at for at, unit in enumerate(waiting) if any(task.role in roles for task in unit.tasks)]
        if needed:
            return min(needed, key=lambda at: (waiting[at].need > 1, at))
    lacking = max(0, job.missing_tasks - job.waiting_tasks)
    return _first_of_fewest(waiting, lacking)


def _first_of_fewest(waiting: Sequence[GroupUnit], lacking: int) -> int:
    """The first of the units that together have `lacking` pods, or as few more as possible.

    Of many units the first ones are compared; where these do not have enough pods, all of them are needed.
    O(compared units x their pods / 64).
    """
    several = [*islice((at for at, unit in enumerate(waiting) if unit.need > 1), _MOST_COMPARED)]
    is_needed = len(several) == _MOST_COMPARED and sum(waiting[at].need for at in several) < lacking
    if is_needed or not several:
        return several[0] if several else 0
    singles = sum(unit.need == 1 for unit in waiting)
    sums = [1]  # by number of the last units: bit n is set if some of them need n pods together
    for at in reversed(several):
        sums.append(sums[-1] | sums[-1] << waiting[at].need)
    sums.reverse()
    total = (sums[0] & ((2 << lacking) - 1)).bit_length() - 1  # the most of them up to `lacking`
    if total + singles < lacking:
        beyond = sums[0] >> lacking
        total = lacking + (beyond & -beyond).bit_length() - 1 if beyond else 0
    for number, at in enumerate(several if total else ()):
        rest = total - waiting[at].need
        if rest >= 0 and sums[number + 1] >> rest & 1:
            return at
    return next((at for at, unit in enumerate(waiting) if unit.need == 1), 0)


def _values_key(group: SubGroup) -> tuple[Any, ...]:
    first = group.values[0] if group.values else ""
    number = int(first) if first.isascii() and first.isdecimal() and len(first) < 18 else -1
    return number < 0, number, group.values
