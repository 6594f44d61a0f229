"""The simulation loop: operations and timers move the cluster, the scheduler steps, its intents move the cluster again.

Sessions happen at multiples of the schedule period. Time jumps over periods in which nothing could happen, so a run
costs what happens in it, not how long it lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from capcard_sched.controllers.objects import DEPLOYMENT, JOB, POD_GROUP, REPLICA_SET, STATEFUL_SET, status
from capcard_sched.model.intents import Bind, Evict, UpdatePodGroup
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.cluster import SimulatedCluster
from capcard_sched.simulation.duration import format_duration
from capcard_sched.simulation.effects import IntentExecutor, PendingEviction
from capcard_sched.simulation.watch import StoreWatch

if TYPE_CHECKING:
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.intents import Intent
    from capcard_sched.simulation.scenario import Scenario
    from capcard_sched.simulation.store import Store

DEFAULT_SCHEDULERS = ("capcard-sched", "volcano")
#: Sessions without a decision after which nothing can change any more.
_QUIET_SESSIONS = 2
#: A scheduler whose plugins depend on time is asked every period for so many quiet sessions before time jumps.
_PATIENT_SESSIONS = 3600
#: A scheduler that names ever new times at which something is due, and then does nothing, is followed so often, and
#: once more for every object and operation of the input.
_EMPTY_DUES = 16
#: Sessions after the last operation at which a run without `until` is taken to be endless: so many, or so many in
#: which something changed; and so many more for every object and operation of the input, and every pod it asks for.
_ENDLESS_SESSIONS, _ENDLESS_CHANGES, _ENDLESS_PER_OBJECT = 10_000, 2_000, 20


class SchedulerStep(Protocol):
    """What the loop needs to know about a step of the scheduler."""

    @property
    def intents(self) -> Sequence[Intent]:
        """What the scheduler wants done, in order."""

    @property
    def idle(self) -> bool:
        """No session ran, because nothing had changed."""

    @property
    def next_wakeup(self) -> float | None:
        """When a step will have something to do although nothing changes, in unix seconds."""


class Step(Protocol):
    """The scheduler, as far as the loop is concerned."""

    def step(self, deltas: Sequence[Delta], now: float) -> SchedulerStep:
        """Take in changes, decide. `now` in unix seconds."""


class SimulationOptions(NamedTuple):
    """How to run. Times in microseconds."""

    scheduler_names: tuple[str, ...] = DEFAULT_SCHEDULERS
    default_queue: str = "default"
    schedule_period: int = SECOND
    #: None: until nothing can change any more.
    until: int | None = None
    #: Unix seconds, wall clock at the start of the program; the start of the run when None. Handshakes in the input are
    #: judged by it.
    started: float | None = None


class SimulationOutcome(NamedTuple):
    """The cluster as it stands at the end."""

    store: Store
    #: Virtual time of the end, microseconds since the start.
    end: int
    sessions: int
    evictions: tuple[PendingEviction, ...]
    warnings: tuple[str, ...]


#: Told the virtual time and the time of the last thing known to come.
Progress: TypeAlias = Callable[[int, int], None]


def simulate(
    scenario: Scenario, scheduler: Step, options: SimulationOptions, progress: Progress | None = None
) -> SimulationOutcome:
    """Run a scenario to its end. Raises InputError when an operation cannot be carried out."""
    run = _Run(scenario, scheduler, options, progress)
    return run.finish()


class _Run:
    """One run; `finish` may be called once."""

    def __init__(
        self, scenario: Scenario, scheduler: Step, options: SimulationOptions, progress: Progress | None
    ) -> None:
        self._options = options
        self._scheduler = scheduler
        self._progress = progress
        self._operations = list(reversed(scenario.operations))
        self._last_operation = scenario.operations[-1].at if scenario.operations else 0
        self._cluster = SimulatedCluster(options.scheduler_names, options.default_queue)
        self._clock = self._cluster.clock
        self._feed = StoreWatch(self._cluster.store, EPOCH if options.started is None else options.started)
        self._cluster.store.observe(self._feed.observe)
        self._effects = IntentExecutor(self._cluster.store, self._feed, self._cluster.recorder, self._cluster.component)
        self._sessions = 0
        #: When the scheduler will have something to do although nothing changes, microseconds.
        self._scheduler_due: int | None = None
        self._warnings = list(scenario.warnings)
        self._scenario = scenario

    def finish(self) -> SimulationOutcome:
        """Run to the end."""
        self._cluster.load(self._scenario)
        period, until = self._options.schedule_period, self._options.until
        size = len(self._scenario.entries) + len(self._scenario.operations)
        more = _ENDLESS_PER_OBJECT * (size + _replicas(self._scenario))
        at = quiet = late = restless = empty = 0
        while until is None or at <= until:
            self._advance(at)
            moved, decided, idle = self._session()
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
                    f"stopped at {format_duration(at)}: after {late} sessions without an operation things still "
                    "change; use --until to say when the run is to end"
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
        self._warnings += [f"PriorityClass {name} does not exist: its pods get priority 0" for name in missing]
        self._warnings += self._cluster.warnings
        store, evictions = self._cluster.store, tuple(self._effects.evictions)
        return SimulationOutcome(store, self._clock.now, self._sessions, evictions, tuple(self._warnings))

    def _session(self) -> tuple[bool, bool, bool]:
        """One step of the scheduler: whether the cluster moved, before it or through it; whether it decided anything.

        Other words about what waits as before are a move and no decision. Last: whether the step was idle.
        """
        deltas = self._feed.drain()
        result = self._scheduler.step(deltas, self._clock.unix)
        self._sessions += 1
        decided = any(self._decides(intent) for intent in result.intents)
        for intent in result.intents:
            self._effects.apply(intent)
        self._cluster.settle()
        self._scheduler_due = None if result.next_wakeup is None else round((result.next_wakeup - EPOCH) * SECOND)
        return bool(deltas) or self._feed.pending, decided, result.idle

    def _decides(self, intent: Intent) -> bool:
        if isinstance(intent, UpdatePodGroup):
            group = self._cluster.store.get(POD_GROUP, intent.namespace, intent.name)
            return group is not None and status(group).get("phase") != intent.phase
        return isinstance(intent, (Bind, Evict))

    def _advance(self, moment: int) -> None:
        """Let everything happen that is due up to `moment`, in order of time; operations before timers."""
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
        """The last moment known to matter."""
        if self._options.until is not None:
            return self._options.until
        return max(self._clock.now, self._last_operation, self._clock.next_due() or 0)


def _replicas(scenario: Scenario) -> int:
    """Pods that controllers make of the objects of the input."""
    asked = 0
    for kind, body in [entry[:2] for entry in scenario.entries] + [(op.kind, op.body) for op in scenario.operations]:
        if kind in (DEPLOYMENT, REPLICA_SET, STATEFUL_SET):
            asked += _count(body.get("spec"))
        elif kind == JOB and isinstance(body.get("spec"), dict):
            tasks = body["spec"].get("tasks")
            asked += sum(map(_count, tasks)) if isinstance(tasks, list) else 0
    return asked


def _count(holder: object) -> int:
    """What a patch replaces is checked only when it is made, so it may be anything here."""
    replicas = holder.get("replicas", 1) if isinstance(holder, dict) else 0
    return max(replicas, 0) if isinstance(replicas, int) else 0
