"""Trials as data: the difference that changes make, and the changes that start a job. Parts of insight documents."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from capcard_sched.model.explanation import VictimsConsidered

#: `apiVersion` of the document. Fields are added within a version, never renamed or removed.
API_VERSION: Final = "insight.capcard-sched.io/v1alpha1"


#: Seconds: pods that end with their node, and for which there is a place, run again by then.
PROMPT_SECONDS: Final = 10.0


class InsightPart(msgspec.Struct, frozen=True, rename="camel"):
    """Base of all parts: camelCase in JSON, as in Kubernetes."""


class EvictedInTrial(InsightPart, frozen=True, kw_only=True):
    """A pod that a trial evicts."""

    #: `namespace/name`, and its workload as `namespace/kind/name`.
    pod: str
    workload: str
    node: str
    action: str
    #: The preemptor.
    by: str


class ChangedUsage(InsightPart, frozen=True, kw_only=True):
    """The usage of a card or resource by a queue before and after."""

    queue: str
    resource: str
    before: float
    after: float


class StateDifference(InsightPart, frozen=True, kw_only=True):
    """The difference between two states: before a trial, and after it."""

    #: Keys of PodGroups (`namespace/name`) that reach their minimum, or get further pods.
    started: tuple[str, ...]
    #: Keys of PodGroups below their minimum at the end.
    pending: tuple[str, ...]
    evicted: tuple[EvictedInTrial, ...]
    usage: tuple[ChangedUsage, ...]
    sessions: int
    #: False: the bound of sessions was reached before the decisions ended.
    settled: bool
    #: Searches for victims without a result, by key of a PodGroup.
    searches: dict[str, tuple[VictimsConsidered, ...]] = {}


class PreemptionTrial(InsightPart, frozen=True, kw_only=True):
    """A trial with actions that the scheduler-conf does not have, and without a policy that forbids preemption."""

    actions: tuple[str, ...]
    #: `PriorityClass careful`, `Pod default/p`: the origins of `preemptionPolicy: Never` without which the pods start,
    #: and with which they do not.
    forbidden_by: tuple[str, ...] = ()
    #: Whether the pods of this job start.
    starts: bool
    evicted: tuple[EvictedInTrial, ...]
    searches: tuple[VictimsConsidered, ...] = ()


class SuggestedChange(InsightPart, frozen=True, kw_only=True):
    """One part of a fix."""

    #: A kind of docs/fixes.md.
    kind: str
    #: `Queue team`, `Node n1`, `Job ml/train`, `scheduler-conf`.
    object: str
    #: A card, resource, taint, action or plugin; "" where the kind has one meaning.
    subject: str = ""
    #: The value now, and the smallest one that suffices; "" for changes without a value.
    before: str = ""
    after: str = ""
    #: The change in words.
    text: str
    #: The shell commands that make the change, or else the fields to change in YAML; changes of one object share them.
    command: str = ""
    yaml: str = ""


class EndedPods(InsightPart, frozen=True, kw_only=True):
    """Pods of a workload that a fix ends."""

    workload: str
    queue: str
    pods: tuple[str, ...]


class SuggestedFix(InsightPart, frozen=True, kw_only=True):
    """Changes that together start the job, as a trial shows, and what they cost other jobs."""

    changes: tuple[SuggestedChange, ...]
    ended: tuple[EndedPods, ...] = ()
    evicted: tuple[EvictedInTrial, ...] = ()
    #: Running pods of the job that end and are created anew from a changed template.
    restarted: tuple[str, ...] = ()
    #: What the changes cost the job itself.
    costs: tuple[str, ...] = ()
    #: The whole fix as it is printed and was tried: shell commands, and fields `path: value`, in their order.
    lines: tuple[str, ...] = ()
    #: Other workloads that the changes start as well: `namespace/kind/name`.
    started: tuple[str, ...] = ()
    #: Pending workloads that start with the changes, or without them, if this job is absent, and those that it
    #: overtakes by its priority.
    delayed: tuple[str, ...] = ()
    #: Trials show that no part can be left out, and no amount be smaller; False: the search ended before.
    minimal: bool = True


class StartablePods(InsightPart, frozen=True, kw_only=True):
    """The pods of a job that trials start if its gang may be smaller."""

    #: Pods that the goal of the search needs.
    wanted: int
    #: Of them those that start now, and with all other jobs ended.
    now: int
    alone: int
    #: Why not all of them start with all other jobs ended; "" where the gang may be smaller and starts.
    reason: str = ""


class FixSearch(InsightPart, frozen=True, kw_only=True):
    """The result of a search for fixes."""

    #: What each fix achieves: `the job starts`, `all 3 pending pods are scheduled`.
    goal: str
    #: The least disruptive first.
    fixes: tuple[SuggestedFix, ...]
    trials: int
    #: The bound that ended the search before all candidates were tried, "" for none.
    bound: str = ""
    #: Why no fix is searched, else "".
    reason: str = ""
    #: Of a search without a fix.
    reach: StartablePods | None = None


class JobChange(InsightPart, frozen=True, kw_only=True):
    """A job that starts in one of the two simulations only, or at another time."""

    #: `namespace/kind/name`.
    job: str
    #: Seconds from its creation until its minimum of pods runs; None: it does not start.
    wait_before: float | None
    wait_after: float | None

    @property
    def added_wait(self) -> float:
        """Seconds by which the start is later; negative for an earlier one."""
        return (self.wait_after or 0.0) - (self.wait_before or 0.0)


class PodCounts(InsightPart, frozen=True, kw_only=True):
    """Numbers of pods of a job in the two simulations."""

    job: str
    before: int
    after: int


class RestartedPods(InsightPart, frozen=True, kw_only=True):
    """Pods of a job that a drained node ends, and that are created anew."""

    job: str
    pods: int
    #: Seconds from the drain until as many of its pods run again; None: not all of them do, or the node is drained
    #: before they start.
    wait: float | None = None


class ChangedStranded(InsightPart, frozen=True, kw_only=True):
    """The free cards of one model that no pod of the mix of requests can use where they are."""

    card: str
    before: float
    after: float


class WhatIfReport(InsightPart, frozen=True, kw_only=True):
    """The effect of changes. Simulations are compared at their ends."""

    api_version: Literal["insight.capcard-sched.io/v1alpha1"] = API_VERSION
    kind: Literal["WhatIfReport"] = "WhatIfReport"
    #: The changes, as on the command line.
    changes: tuple[str, ...]
    #: Seconds of virtual time at the end of the two simulations.
    end_before: float
    end_after: float
    #: Jobs that start only after the changes, and only before them.
    starts: tuple[JobChange, ...]
    blocked: tuple[JobChange, ...]
    #: Jobs that start in both, at another time. A start after a restart is none.
    moved: tuple[JobChange, ...]
    #: Pods that run or have succeeded, of jobs that start in both, where the numbers differ.
    pods: tuple[PodCounts, ...]
    #: Evicted pods, where the numbers differ.
    evictions: tuple[PodCounts, ...]
    usage: tuple[ChangedUsage, ...]
    #: Cards of which another amount is stranded.
    stranded: tuple[ChangedStranded, ...] = ()
    #: Pods on nodes that are drained.
    restarts: tuple[RestartedPods, ...] = ()

    @property
    def is_worse(self) -> bool:
        """Whether a job no longer starts, waits longer, has fewer pods, or loses more pods to evictions."""
        return bool(
            self.blocked
            or any((restart.wait or 0.0) > PROMPT_SECONDS for restart in self.restarts)
            or any(job.added_wait > 0 for job in self.moved)
            or any(count.after < count.before for count in self.pods)
            or any(count.after > count.before for count in self.evictions)
        )
