"""The CPUs of one node that nobody has, and those that pods were given and the Numatopology does not show yet.

The object shows free CPUs some seconds late, and a kubelet may give a pod others than were planned. So what a pod was
given here is a *claim*, and a CPU is available when the object shows it as free and no claim is on it: a CPU that is
claimed and gone from the object counts once. A claim ends when the object shows the pod, which is the case when

* it names the pod among those with CPUs of their own (newer exporters), or
* it names nobody, the pod runs, and none of the claimed CPUs is free any more, or
* it names nobody, the pod has been running for `SETTLE_SECONDS` (exporters look every few seconds), and as many CPUs
  are gone as the running pods on the node need;

or when the pod has left the node. Where somebody else was given a claimed CPU, the claim is planned anew on what is
left. Pods that come up on the node without a plan, another scheduler's or after a restart, are planned
for as the kubelet would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.model.numa import BEST_EFFORT
from capcard_sched.model.status import TaskStatus
from capcard_sched.plugins.numa_aware.cpus import take
from capcard_sched.plugins.numa_aware.hints import CpuPlan, Refused, plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.numa import NumaFacts

#: After so many seconds of running a pod is in the object, if anybody writes it at all.
SETTLE_SECONDS: Final = 30.0

#: On the node, but its kubelet may not have admitted it.
_COMING = frozenset({TaskStatus.BINDING, TaskStatus.BOUND})


class CpuClaim:
    """CPUs that a pod was given and that the object may still show as free."""

    __slots__ = ("plan", "running_since", "wanted")

    def __init__(self, found: CpuPlan, wanted: tuple[int, ...]) -> None:
        self.plan = found
        #: How many CPUs each container wants.
        self.wanted = wanted
        #: When the pod was first seen running, Unix seconds; None before.
        self.running_since: float | None = None


def wanted_by(task: Task) -> tuple[int, ...]:
    """How many CPUs of its own each container of a pod gets; empty for most pods."""
    return tuple(count for _, count in task.cls.own_cpus or ())


def _wanted_by_all(tasks: Iterable[Task]) -> int:
    return sum(sum(wanted_by(task)) for task in tasks)


class NodeCpus:
    """See the module docstring."""

    def __init__(self, facts: NumaFacts) -> None:
        #: By uid, oldest first.
        self.claims: dict[str, CpuClaim] = {}
        #: Pods on the node that have or had a claim, or need none.
        self._known: set[str] = set()
        self._fresh = True
        self.update(facts)

    def update(self, facts: NumaFacts) -> None:
        """The object says something else."""
        self.facts = facts
        self._reserved = take(facts.topology, facts.topology.cpus, facts.reserved)

    @property
    def shown(self) -> int:
        """CPUs the object shows as free, those that are kept for the system too."""
        return self.facts.free or 0

    @property
    def unclaimed(self) -> int:
        """Those of them that no claim is on."""
        free = self.shown
        for claim in self.claims.values():
            free &= ~claim.plan.cpus
        return free

    @property
    def available(self) -> int:
        """CPUs that can be given away."""
        return self.unclaimed & ~self._reserved

    # --- in a session -----------------------------------------------------------------------------------------------

    def plan(self, wanted: Sequence[int]) -> CpuPlan | Refused:
        """CPUs for a pod under the node's policy."""
        return plan(self.facts.topology, self.available, self.facts.topology_policy, wanted)

    def claim(self, uid: str, wanted: tuple[int, ...]) -> bool:
        """Give a pod CPUs; False, and nothing is given, when the node's policy does not let it start."""
        found = self.plan(wanted)
        if isinstance(found, Refused):
            return False
        self.claims[uid] = CpuClaim(found, wanted)
        self._known.add(uid)
        return True

    def release(self, uid: str) -> bool:
        """Take back what a pod was given in this session, as if it had never been. Whether that was anything."""
        self._known.discard(uid)
        return self.claims.pop(uid, None) is not None

    # --- from session to session ------------------------------------------------------------------------------------

    def catch_up(self, node: Node, now: float) -> None:
        """End claims, and make those of pods that came up by themselves. O(pods on the node)."""
        tasks = {uid: task for uid, task in node.tasks.items() if task.cls.own_cpus}
        for uid in [uid for uid in self.claims if uid not in tasks]:
            del self.claims[uid]
        self._known &= tasks.keys()
        self._meet(tasks)
        for uid, claim in list(self.claims.items()):
            if tasks[uid].status is TaskStatus.RUNNING and claim.running_since is None:
                claim.running_since = now
            if self._is_shown(tasks[uid], claim, tasks.values(), now):
                del self.claims[uid]
        self._plan_anew(tasks.values())

    def _meet(self, tasks: dict[str, Task]) -> None:
        """Claim for pods that are seen for the first time. Of those that run already the oldest are in the object."""
        met = sorted(
            (task for uid, task in tasks.items() if uid not in self._known), key=lambda task: (task.created, task.uid)
        )
        gone = self._gone if self._fresh else 0
        self._fresh = False
        for task in met:
            self._known.add(task.uid)
            wanted = wanted_by(task)
            if task.status not in _COMING and not self.facts.pods:
                gone -= sum(wanted)
                if gone >= 0:
                    continue
            if not self._names(task) and not task.deleting:
                self.claims[task.uid] = CpuClaim(self._guess(wanted), wanted)

    def _names(self, task: Task) -> bool:
        return task.uid in self.facts.pods or task.key in self.facts.pods

    def _is_shown(self, task: Task, claim: CpuClaim, others: Iterable[Task], now: float) -> bool:
        if self.facts.pods:
            return self._names(task)
        if claim.running_since is None:
            return False
        if not claim.plan.cpus & self.shown:
            return True
        return now >= claim.running_since + SETTLE_SECONDS and self._gone >= _wanted_by_all(
            other for other in others if other.status not in _COMING
        )

    @property
    def _gone(self) -> int:
        """How many CPUs the object does not show as free."""
        return (self.facts.topology.cpus & ~self.shown).bit_count()

    def _plan_anew(self, tasks: Iterable[Task]) -> None:
        """Give claims other CPUs where somebody else got theirs, as long as there is less claimed than will go."""
        if not self.claims:
            return
        if self.facts.pods:
            coming = sum(sum(claim.wanted) for claim in self.claims.values())
        else:
            coming = _wanted_by_all(tasks) - self._gone
        for uid, claim in list(self.claims.items()):
            if (self.shown & ~self.unclaimed).bit_count() >= coming:
                return
            if claim.plan.cpus & ~self.shown:
                del self.claims[uid]
                claim.plan = self._guess(claim.wanted)
                self.claims[uid] = claim

    def _guess(self, wanted: tuple[int, ...]) -> CpuPlan:
        """What the kubelet will give a pod that is on the node: as many as there are, when nothing fits."""
        for policy in (self.facts.topology_policy, BEST_EFFORT):
            found = plan(self.facts.topology, self.available, policy, wanted)
            if isinstance(found, CpuPlan):
                return found
        free = self.available
        return CpuPlan((take(self.facts.topology, free, min(sum(wanted), free.bit_count())),), 1)

    def next_look(self, now: float) -> float | None:
        """When a claim may end although nothing changes, Unix seconds; None when that is not to be waited for."""
        if self.facts.pods:
            return None
        ends = (
            claim.running_since + SETTLE_SECONDS for claim in self.claims.values() if claim.running_since is not None
        )
        return min((end for end in ends if end > now), default=None)
