"""The simulation loop: operations and timers change the cluster, the scheduler steps, its intents change the cluster.

Sessions run at multiples of the schedule period. Time jumps over periods without work, so the cost of a run is
proportional to its events, not to its duration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from capcard_sched.controllers.objects import DEPLOYMENT, JOB, POD_GROUP, REPLICA_SET, STATEFUL_SET, status
from capcard_sched.model.intents import Bind, Evict, UpdatePodGroup
from capcard_sched.model.kinds import BATCH_JOB
from capcard_sched.model.timestamps import format_span
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.cluster import SimulatedCluster
from capcard_sched.simulation.effects import IntentExecutor, PendingEviction
from capcard_sched.simulation.scenario import DEFAULT_SCHEDULERS as DEFAULT_SCHEDULERS  # noqa: PLC0414 -- a re-export
from capcard_sched.simulation.scenario import SimulationOptions as SimulationOptions  # noqa: PLC0414, TC001 -- a re-export
from capcard_sched.simulation.store import StoreWatch

if TYPE_CHECKING:
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.intents import Intent
    from capcard_sched.simulation.scenario import Scenario
    from capcard_sched.simulation.store import Store

#: Sessions without a decision after which the run has settled.
_QUIET_SESSIONS = 2
#: Quiet sessions, one per period, before time jumps when the plugins depend on time.
_PATIENT_SESSIONS = 3600
#: Wake-ups without a decision that are followed; one more for every object and operation of the input.
_EMPTY_DUES = 16
#: Sessions after the last operation at which a run without `until` counts as endless: in all, those with a change,
#: and more of either for every object, operation and pod of the input.
_ENDLESS_SESSIONS, _ENDLESS_CHANGES, _ENDLESS_PER_OBJECT = 10_000, 2_000, 20


class SchedulerStep(Protocol):
    """The result of a step of the scheduler, as far as the loop reads it."""

    @property
    def only_retries(self) -> bool:
        """Whether the next wake-up only retries admitted jobs without progress."""

    @property
    def intents(self) -> Sequence[Intent]:
        """The decisions, in order."""

    @property
    def idle(self) -> bool:
        """No session ran, because nothing had changed."""

    @property
    def next_wakeup(self) -> float | None:
        """When the next step has work although nothing changes, in unix seconds."""


class Step(Protocol):
    """The scheduler, as the loop calls it."""

    def step(self, deltas: Sequence[Delta], now: float) -> SchedulerStep:
        """Apply changes and decide. `now` in unix seconds."""


class SimulationOutcome(NamedTuple):
    """The cluster at the end of a run."""

    store: Store
    #: Virtual time of the end, microseconds since `EPOCH`.
    end: int
    sessions: int
    evictions: tuple[PendingEviction, ...]
    warnings: tuple[str, ...]
    #: Changes since the last session, which the scheduler has not received.
    deltas: tuple[Delta, ...] = ()
    #: Uids of running pods to the moments at which they end, microseconds.
    ends: Mapping[str, int] = MappingProxyType({})
    #: Virtual time of the start, microseconds since `EPOCH`.
    begin: int = 0

    @property
    def elapsed(self) -> float:
        """Seconds from the start to the end."""
        return (self.end - self.begin) / SECOND


#: Called with the virtual time and the time of the last known event.
Progress: TypeAlias = Callable[[int, int], None]


def simulate(
    scenario: Scenario, scheduler: Step, options: SimulationOptions, progress: Progress | None = None
) -> SimulationOutcome:
    """Run a scenario to its end. Raises InputError when an operation cannot be applied."""
    run = SimulationRun(scenario, scheduler, options, progress)
    run.load()
    return run.finish()


class SimulationRun:
    """One run: `load`, then `finish`, once each."""

    def __init__(
        self, scenario: Scenario, scheduler: Step, options: SimulationOptions, progress: Progress | None = None
    ) -> None:
        self._options = options
        self._scheduler = scheduler
        self._progress = progress
        begin = options.begin
        self._operations = [one._replace(at=begin + one.at) for one in reversed(scenario.operations)]
        self._last_operation = self._operations[0].at if self._operations else begin
        self._cluster = SimulatedCluster(
            options.scheduler_names, options.default_queue, options.begin, options.card_labels
        )
        self._clock = self._cluster.clock
        self._feed = StoreWatch(self._cluster.store, EPOCH if options.started is None else options.started)
        self._cluster.store.observe(self._feed.observe)
        self._effects = IntentExecutor(self._cluster.store, self._feed, self._cluster.recorder, self._cluster.component)
        self._sessions = 0
        #: Sessions in a row that only retried.
        self._retries = 0
        #: Microseconds: the next wake-up that the scheduler requested, None without one.
        self._scheduler_due: int | None = None
        found = scenario.findings_with(options.plugins)
        self._warnings = [str(problem) for problem in (*scenario.warnings, *found)]
        self._scenario = scenario

    @property
    def cluster(self) -> SimulatedCluster:
        """The cluster; `load` fills it."""
        return self._cluster

    def load(self) -> None:
        self._cluster.load(self._scenario)

    def drain(self) -> list[Delta]:
        """The changes that the scheduler has not received, for a caller that hands them over."""
        return self._feed.drain()

    def finish(self, enough: Callable[[], bool] = lambda: False) -> SimulationOutcome:
        """Run to the end, or until `enough` is true after a session."""
        period, until = self._options.schedule_period, self._options.until
        size = len(self._scenario.entries) + len(self._scenario.operations)
        more = _ENDLESS_PER_OBJECT * (size + _replicas(self._scenario))
        at, quiet, late, restless, empty = self._options.begin, 0, 0, 0, 0
        while until is None or at <= until:
            self._advance(at)
            moved, decided, idle = self._session()
            if enough():
                break
            quiet = 0 if moved else quiet + 1
            empty = 0 if decided or self._next_due() is not None else empty
            late = late + 1 if at > self._last_operation else 0
            restless += late > 0 and moved
            coming = min((due for due in (self._next_due(), self._scheduler_due) if due is not None), default=None)
            if coming is None and quiet >= _QUIET_SESSIONS and (idle or until is None or quiet > _PATIENT_SESSIONS):
                break
            if until is None and empty > _EMPTY_DUES + size:
                break
            if until is None and (late > _ENDLESS_SESSIONS + more or restless > _ENDLESS_CHANGES + more):
                self._warnings.append(
                    f"stopped at {format_span(at)}: the cluster still changes {late} sessions after the last "
                    "operation; set the end of the run with --until"
                )
                break
            at += period
            if coming is not None and quiet and (idle or quiet > _PATIENT_SESSIONS):
                at = max(at, -(-coming // period) * period)
                empty += 1
            if self._progress is not None:
                self._progress(self._clock.now, self._horizon())
        if until is not None:
            self._advance(until)
            self._clock.now = max(self._clock.now, until)
        missing = self._cluster.admission.missing_classes
        self._warnings += [
            f"PriorityClass {name} does not exist: pods get priority 0; an API server rejects them" for name in missing
        ]
        self._warnings += [*self._cluster.warnings, *self._cluster.quotas.beyond()]
        store, evictions = self._cluster.store, tuple(self._effects.evictions)
        return SimulationOutcome(
            store,
            self._clock.now,
            self._sessions,
            evictions,
            tuple(self._warnings),
            tuple(self._feed.drain()),
            self._cluster.kubelet.ends(),
            self._options.begin,
        )

    def _session(self) -> tuple[bool, bool, bool]:
        """Run one step. Returns whether the cluster changed before or by it, whether it decided, whether it was idle.

        A changed message about a pod that is pending as before is a change and no decision.
        """
        deltas = self._feed.drain()
        result = self._scheduler.step(deltas, self._clock.unix)
        self._sessions += 1
        decided = any(self._decides(intent) for intent in result.intents)
        self._effects.apply_all(result.intents)
        self._cluster.settle()
        # Retries of jobs that found no nodes never end: a run without `until` waits for a bounded number of them alone.
        moves = self._next_due() is not None or any(isinstance(intent, (Bind, Evict)) for intent in result.intents)
        self._retries = 0 if moves else self._retries + (result.only_retries and not result.idle)
        endless = result.only_retries and self._options.until is None and not moves
        wakeup = None if endless and self._retries > self._options.retries else result.next_wakeup
        self._scheduler_due = None if wakeup is None else round((wakeup - EPOCH) * SECOND)
        return bool(deltas) or self._feed.pending, decided, result.idle

    def _decides(self, intent: Intent) -> bool:
        if isinstance(intent, UpdatePodGroup):
            group = self._cluster.store.get(POD_GROUP, intent.namespace, intent.name)
            return group is not None and status(group).get("phase") != intent.phase
        return isinstance(intent, (Bind, Evict))

    def _advance(self, moment: int) -> None:
        """Advance to `moment`: apply operations and fire timers in order of time; operations come first."""
        while (due := self._next_due()) is not None and due <= moment:
            if self._operations and self._operations[-1].at == due:
                self._clock.now = due
                self._cluster.operate(self._operations.pop())
            else:
                self._clock.fire_next()
            self._cluster.settle()
        self._clock.now = max(self._clock.now, moment)

    def _next_due(self) -> int | None:
        timer = self._clock.next_due()
        operation = self._operations[-1].at if self._operations else None
        known = [moment for moment in (timer, operation) if moment is not None]
        return min(known, default=None)

    def _horizon(self) -> int:
        if self._options.until is not None:
            return self._options.until
        return max(self._clock.now, self._last_operation, self._clock.next_due() or 0)


def _replicas(scenario: Scenario) -> int:
    """The number of pods that controllers create from the objects of the input."""
    count = 0
    for kind, body in [entry[:2] for entry in scenario.entries] + [(op.kind, op.body) for op in scenario.operations]:
        if kind in (DEPLOYMENT, REPLICA_SET, STATEFUL_SET):
            count += _count(body.get("spec"))
        elif kind == BATCH_JOB:
            count += _count(body.get("spec"), "parallelism")
        elif kind == JOB and isinstance(body.get("spec"), dict):
            tasks = body["spec"].get("tasks")
            count += sum(map(_count, tasks)) if isinstance(tasks, list) else 0
    return count


def _count(holder: object, field: str = "replicas") -> int:
    """The body of a patch is validated when it is applied, so any value is possible here."""
    replicas = holder.get(field, 1) if isinstance(holder, dict) else 0
    return max(replicas, 0) if isinstance(replicas, int) else 0
