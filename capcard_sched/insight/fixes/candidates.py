"""Candidates for fixes: the changes that the kinds propose for a diagnosis. A trial decides on each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.objects import QUEUE
from capcard_sched.insight.fixes.kinds import KINDS
from capcard_sched.insight.fixes.situation import Situation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.core import Core
    from capcard_sched.insight.sources.object_view import Json, ObjectView
    from capcard_sched.insight.trials.change import Candidate, ProposedChange
    from capcard_sched.model.diagnosis import JobDiagnosis
    from capcard_sched.model.job import Job


def candidates(
    core: Core,
    view: ObjectView,
    job: Job,
    owner: Json | None,
    found: JobDiagnosis,
    *,
    may_evict: Sequence[str] = (),
) -> tuple[Candidate, ...]:
    """Sets of changes, each of which may remove what keeps a job from starting. Empty without a suggestion.

    `owner`: the workload of the pods, if it is known. `may_evict`: actions that a trial found to help. `found` is the
    diagnosis of the same state.
    Cost: O(pods of the queue), and O(nodes) array operations per template of pending pods.
    """
    session = core.snapshot().session
    if session is None:
        return ()
    situation = Situation(core, session, view, job, owner, found, may_evict)
    rows = (row for kind in KINDS.values() for row in kind.propose(situation))
    return tuple(dict.fromkeys(row for row in rows if row and not any(map(_is_of_tenant, row))))


def _is_of_tenant(change: ProposedChange) -> bool:
    """Whether a change is of a NamespaceQueue, which the namespace decides on."""
    return change.target[0] == QUEUE and "/" in change.target[2]
