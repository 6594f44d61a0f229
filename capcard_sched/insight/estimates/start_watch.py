"""The starts of jobs in a run of the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.controllers.objects import POD, is_terminating, meta, spec
from capcard_sched.insight.estimates.job_runs import job_key, pod_runs
from capcard_sched.simulation.clock import SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.insight.estimates.estimates import UnfinishedJob
    from capcard_sched.simulation.run import SimulationRun
    from capcard_sched.simulation.store import Change

#: Seconds before a start within which an end is one that the job waited for: admission and binding take two sessions.
_AWAITED: Final = 3.0


class StartWatch:
    """Notes when jobs reach their minimum of running pods, and the ends directly before."""

    def __init__(self, jobs: Mapping[str, UnfinishedJob], run: SimulationRun) -> None:
        self._jobs = jobs
        self._clock = run.cluster.clock
        #: Job to its running pods, uid to node.
        self._running: dict[str, dict[str, str]] = {key: {} for key in jobs}
        #: The last ends: time, job, node, and whether a deleted pod ended.
        self._ends: list[tuple[int, str, str, bool]] = []
        self.waiting = set(jobs)
        #: Microseconds.
        self.starts: dict[str, int] = {}
        #: Job to the jobs with these ends, and whether they were those of deleted pods alone.
        self.awaited: dict[str, tuple[tuple[str, bool], ...]] = {}
        for pod in run.cluster.store.list(POD):
            if job_key(pod) in self.waiting and pod_runs(pod):
                self._running[job_key(pod)][meta(pod)["uid"]] = spec(pod)["nodeName"]

    def observe(self, change: Change) -> None:
        """Count running pods."""
        if change.kind != POD:
            return
        pod = change.object
        was = change.old is not None and pod_runs(change.old)
        runs = change.new is not None and pod_runs(change.new)
        if was == runs:
            return
        key = job_key(pod)
        if was:
            deleted = change.old is not None and is_terminating(change.old)
            self._ends.append((self._clock.now, key, spec(pod)["nodeName"], deleted))
        if key not in self.waiting:
            return
        running = self._running[key]
        if was:
            running.pop(meta(pod)["uid"], None)
        else:
            running[meta(pod)["uid"]] = spec(pod)["nodeName"]
        if len(running) >= self._jobs[key].minimum:
            self.waiting.discard(key)
            self.starts[key] = self._clock.now
            self.awaited[key] = self._recent(set(running.values()))

    def _recent(self, nodes: set[str]) -> tuple[tuple[str, bool], ...]:
        """The jobs that ended directly before now; of those on the same nodes only, if there are any."""
        since = self._clock.now - round(_AWAITED * SECOND)
        self._ends = [end for end in self._ends if end[0] >= since]
        ends = [end for end in self._ends if end[2] in nodes] or self._ends
        jobs = sorted({key for _, key, _, _ in ends})
        return tuple((one, all(deleted for _, key, _, deleted in ends if key == one)) for one in jobs)
