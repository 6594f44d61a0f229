"""The deterministic core: deltas in, intents out. No I/O, no clock, no threads."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Literal

from capcard_sched.framework.api.dispatch import Dispatch, HookFailed
from capcard_sched.framework.api.plugin import Reads
from capcard_sched.framework.backlog.failed_attempts import FailedAttempts
from capcard_sched.framework.close.problem_events import ProblemEvents
from capcard_sched.framework.close.queue_status import QueueWarnings
from capcard_sched.framework.close.session_closer import SessionCloser
from capcard_sched.framework.eviction import nominations
from capcard_sched.framework.placement.engine import PlacementEngine, quota_hooks
from capcard_sched.framework.placement.signature_cache import SignatureCache
from capcard_sched.framework.session.action import SessionProgress
from capcard_sched.framework.session.carry_over import CarryOver
from capcard_sched.framework.session.half_gangs import HALF_GANG_SECONDS, HalfGangs
from capcard_sched.framework.session.oversized_jobs import mark_oversized
from capcard_sched.framework.session.report import WHOLE_SESSION, SessionReport, Timing
from capcard_sched.framework.session.results import reference
from capcard_sched.framework.session.session import Session
from capcard_sched.framework.session.session_deadline import SessionDeadline
from capcard_sched.framework.session.statement import quotas_admit
from capcard_sched.framework.session.unused_claims import UnusedClaims
from capcard_sched.framework.step_result import CoreSnapshot as CoreSnapshot  # noqa: PLC0414 -- a re-export
from capcard_sched.framework.step_result import StepResult as StepResult  # noqa: PLC0414 -- a re-export
from capcard_sched.model import reasons
from capcard_sched.model.annotations import QUEUE_NAMESPACES
from capcard_sched.model.autoscaling import DEFAULT_AUTOSCALING
from capcard_sched.model.group_affinity import AFFINITY_PLUGIN
from capcard_sched.model.intents import EmitEvent, Intent
from capcard_sched.model.status import TaskStatus
from capcard_sched.model.task_class import NO_ACCOUNTING
from capcard_sched.model.term_limits import DEFAULT_TERM_LIMITS
from capcard_sched.state.cluster import ClusterState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from capcard_sched.framework.api.plugin import Plugin
    from capcard_sched.framework.conf.registry import Registry
    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.framework.session.action import Action
    from capcard_sched.framework.session.session import FailureObserver
    from capcard_sched.framework.session.session_deadline import QueueCut
    from capcard_sched.model.autoscaling import AutoscalingOptions
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.intents import Bind
    from capcard_sched.model.term_limits import TermLimits
    from capcard_sched.state.changes import Changes

#: Fields of `Changes` that are no reason for a session unless a plugin or an action reads them.
_WATCHED = {
    "quotas": Reads.QUOTAS,
    "budgets": Reads.BUDGETS,
    "card_budgets": Reads.CARD_BUDGETS,
    "usage": Reads.USAGE,
    "numa": Reads.NUMA,
    "config_maps": Reads.CONFIG_MAPS,
    "namespaces": Reads.NAMESPACES,
}
#: Sessions between two prunings of state about objects that are gone.
_PRUNE_SESSIONS = 256


class Core:
    """The scheduler without its environment. The same deltas, conf and times give the same intents, byte for byte."""

    def __init__(
        self,
        conf: Conf,
        registry: Registry,
        scheduler_names: Iterable[str] = ("capcard-sched", "volcano"),
        default_queue: str = "default",
        timer: Callable[[], float] | None = None,
        term_limits: TermLimits = DEFAULT_TERM_LIMITS,
        calls_webhooks: bool = False,
        session_deadline: float = 0.0,
        half_gang_timeout: float = HALF_GANG_SECONDS,
        autoscaling: AutoscalingOptions = DEFAULT_AUTOSCALING,
        waits_for_groups: bool = False,
    ) -> None:
        """`timer` returns seconds for the report's timings, None for no timings.

        It decides nothing, except with a `session_deadline` above 0, in seconds: see `SessionDeadline`.
        `half_gang_timeout`: seconds, as of `HalfGangs`. `calls_webhooks`: whether plugins may call webhooks.
        `waits_for_groups`: as of `ClusterState`.
        """
        self._state = ClusterState(scheduler_names, default_queue, term_limits, waits_for_groups=waits_for_groups)
        #: The plugins and actions that a scheduler-conf can name.
        self.registry = registry
        self._timer, self._session_deadline = timer, session_deadline
        #: Whether the session deadline left jobs to the next session.
        self._unfinished = False
        #: Key of the job that a trial is about, "" outside of trials.
        self._target, self._is_paused = "", False
        self._observe: FailureObserver = lambda *_: None
        self._autoscaling = autoscaling
        self._closer, self._memory = SessionCloser(timer, precise=autoscaling.precise_reasons), CarryOver()
        if autoscaling.expects_nodes or autoscaling.provisioning_class:
            self._memory.expect_nodes(autoscaling.provisioning_class)
        self._half_gangs, self._problem_events = HalfGangs(half_gang_timeout), ProblemEvents()
        self._unused_claims = UnusedClaims()
        self._sessions, self._calls_webhooks = 0, calls_webhooks
        #: The waiting jobs that sessions skip.
        self._failed_attempts = FailedAttempts(self._state, Dispatch(()))
        self._last_session: Session | None = None
        self._idle_report = SessionReport("")  # of each step without a session: nothing is recorded in it
        self.reconfigure(conf)

    def progress(self) -> SessionProgress:
        """What sessions keep besides the state, for `sibling`."""
        return SessionProgress(self._memory.successor(), {action.name: action.progress() for action in self._actions})

    def sibling(self, conf: Conf, progress: SessionProgress | None = None) -> Core:
        """A core with the same parameters, another scheduler-conf, an empty state and this progress; no webhooks."""
        state = self._state
        core = Core(
            conf,
            self.registry,
            scheduler_names=state.scheduler_names,
            default_queue=state.default_queue,
            term_limits=state.term_limits,
            half_gang_timeout=self._half_gangs.timeout,
            autoscaling=self._autoscaling,
            waits_for_groups=state.waits_for_groups,
        )
        if progress is not None:
            core._resume(progress)
        return core

    def _resume(self, progress: SessionProgress) -> None:
        self._memory = progress.resume(self._actions)

    def reconfigure(self, conf: Conf) -> None:
        """Uses another scheduler-conf from the next step on. Plugins restart and see everything as changed."""
        self._conf = conf
        built: dict[str, Plugin] = {}
        tiers: list[list[tuple[Plugin, dict[str, bool]]]] = []
        for tier in conf.tiers:
            resolved = []
            for option in tier:
                plugin = built.get(option.name)
                if plugin is None:
                    plugin_type = self.registry.plugin(option.name)
                    if plugin_type is None:
                        continue
                    plugin = built[option.name] = plugin_type(
                        option.arguments, hierarchy=option.switches.get("enableHierarchy", False)
                    )
                resolved.append((plugin, dict(option.switches)))
            tiers.append(resolved)
        self._dispatch = Dispatch(tiers)
        plugins = self._dispatch.plugins
        #: Name, hook and method of the plugins that prepare or open sessions, in order.
        hooks = [(one.name, hook, one.method(hook)) for hook in ("prepare", "open") for one in plugins]
        self._starts = [(name, hook, start) for name, hook, start in hooks if start is not None]
        self._queue_warnings = QueueWarnings(conf.quota_plugins)
        self._problem_events.reads_affinity = conf.option(AFFINITY_PLUGIN) is not None
        self._state.card_labels = conf.quota_plugins.card_labels
        self._signatures, self._quota_hooks = SignatureCache(self._dispatch), quota_hooks(self._dispatch)
        self._state.support_claims(any(plugin.supports_claims for plugin in plugins))
        if not self._dispatch.has("prepare"):
            self._state.account_devices(NO_ACCOUNTING)
        self._start_actions(conf)
        self._memory.expect_nodes_of(conf.node_groups)
        self._state.changes.everything = True

    def try_actions(
        self, conf: Conf, target: str = "", *, only: str = "", observe: FailureObserver | None = None
    ) -> None:
        """Uses the actions of a scheduler-conf with the same plugins, which continue: in trials.

        Every waiting job counts as changed. With a `target`, the key of a job, sessions skip none, and attempt none
        once each pod of it is placed or nominated; with `only`, they attempt this one alone. `observe`: its failures.
        """
        self._conf, self._target, self._observe = conf, target, observe or self._observe
        self._start_actions(conf)
        if target:
            self._failed_attempts.disable()
        if only:
            self.attempt_only(only)
        self._state.changes.jobs.update(self._state.active)

    def pause_actions(self, *, paused: bool = True) -> None:
        """Let sessions run no actions, so that they find the present state, or all of them again."""
        self._is_paused = paused

    def _start_actions(self, conf: Conf) -> None:
        found = [(self.registry.action(name), conf.action_arguments.get(name)) for name in conf.actions]
        self._actions: list[Action] = [made(arguments) for made, arguments in found if made is not None]
        reads = reduce(or_, (action.reads for action in self._actions), self._dispatch.reads)
        self._reads_clock = Reads.CLOCK in reads
        self._watched_fields = [field for field, flag in _WATCHED.items() if flag in reads]
        self._next_wakeup: float | None = None
        self._only_retries = False
        self._failed_attempts.drop_all()
        self._failed_attempts = FailedAttempts(self._state, self._dispatch)
        self._memory = self._memory.successor()

    def _is_served(self) -> bool:
        """Whether each pod of the target of a trial is placed or nominated."""
        if (job := self._state.jobs.get(self._target)) is None or job.pending or not job.tasks:
            return False
        known, waits = self._memory.nominations, TaskStatus.PIPELINED
        return all(task.status is not waits or task.uid in known for task in job.tasks.values())

    def snapshot(self) -> CoreSnapshot:
        """The state, the scheduler-conf and the last session, for readers. O(1)."""
        warnings = self._queue_warnings.reasons
        return CoreSnapshot(
            self._state, self._conf, self._dispatch, self._failed_attempts, self._last_session, warnings
        )

    def apply(self, delta: Delta) -> None:
        """Apply a delta outside of a step: by the table of its kind, a pod by `PodTable.apply`."""
        self._state.apply(delta)

    def apply_all(self, deltas: Iterable[Delta], failed: Callable[[Delta, Exception], None] | None = None) -> None:
        """Apply deltas outside of a step, as `ClusterState.apply_all`: pods by `PodTable`, others by their table."""
        self._state.apply_all(deltas, failed)

    def resync(self) -> None:
        """Let the next session see everything as changed."""
        self._state.changes.everything = True

    def attempt_only(self, key: str) -> None:
        """Let sessions attempt one job only, for trials."""
        self._state.attempt_only(key)

    def keep_silent(self, *, searches: bool = False) -> None:
        """Let sessions make no texts for objects from now on; `searches`: as of `CarryOver.keep_silent`."""
        self._memory.keep_silent(searches=searches)

    def forget_gone(self) -> None:
        """Drop what is kept of objects that are gone, where no sessions run."""
        self._state.forget_gone()

    def lists_applied(self) -> None:
        """Fix the accounts of bound pods from now on: the initial lists are complete."""
        self._state.fix_accounts()

    @property
    def config_maps(self) -> frozenset[tuple[str, str]]:
        """Namespace and name of the ConfigMaps that the plugins read."""
        return frozenset().union(*(plugin.config_maps for plugin in self._dispatch.plugins))

    def step(
        self,
        deltas: Sequence[Delta],
        now: float,
        on_commit: Callable[[list[Bind]], None] | None = None,
        cuts: Mapping[str, QueueCut] | None = None,
    ) -> StepResult:
        """Applies deltas and runs a session, unless nothing relevant changed.

        `now` is in Unix seconds. A session on an unchanged cluster would repeat the last results: it is skipped unless
        a plugin's results depend on time or a wakeup is reached. `on_commit` gets the bindings of each gang at its
        commit; the result holds them again, first among the intents. `cuts`: the points at which the session deadline
        ended the attempts of queues in a recording, by queue; the timer then ends none.
        """
        state = self._state
        if deltas:
            state.apply_all(deltas)
        intents = self._confirm()
        next_wakeup = self._next_wakeup
        busy = self._is_dirty() or self._unfinished or self._reads_clock
        if not busy and (next_wakeup is None or now < next_wakeup):
            intents += self._problem_events.new(state)  # an invalid object changes nothing else
            return StepResult(intents, self._idle_report, True, next_wakeup, self._only_retries)
        session = self.open_session(now, on_commit, cuts)
        # A failure about one job stops nothing else.
        if not any(error.object == WHOLE_SESSION for error in session.results.report.errors):
            everything = session.changed.everything or (next_wakeup is not None and now >= next_wakeup)
            # Labels of namespaces decide which jobs a queue with a namespaces annotation accepts.
            everything = everything or self._restricts(session.changed)
            nominations.open_nominations(session)  # first: failures depend on what is nominated
            session.skip_failed_attempts(self._signatures, quotas_admit, everything=everything)
            actions = [] if self._is_paused else self._actions
            self._half_gangs.complete(session, actions)
            self._run_actions(session, actions)
            self._half_gangs.end(session, evicts=bool(actions))
        else:
            self._half_gangs.end(session, evicts=False)
        releases = self._unused_claims.release(session)
        intents += [*self._closer.close(session), *releases]
        session.namespace_work.end()
        self._unfinished = session.results.report.unfinished
        self._memory.keep_refusals(session.results.refusals)
        self._next_wakeup = self._earliest_wakeup(session)
        intents += self._problem_events.new(state)
        if self._sessions % _PRUNE_SESSIONS == 0:
            self._memory.keep(state.jobs)
            self._closer.prune(state.tasks, state.jobs, now)
        return StepResult(intents, session.results.report, False, self._next_wakeup, self._only_retries)

    def _is_dirty(self) -> bool:
        dirty = self._state.changes
        for field in self._watched_fields:
            if getattr(dirty, field):
                return True
        return bool(dirty) or self._restricts(dirty)

    def _restricts(self, changed: Changes) -> bool:
        """Whether a namespace changed, and some queue accepts jobs by namespace."""
        return bool(changed.namespaces) and any(QUEUE_NAMESPACES in q.annotations for q in self._state.queues.values())

    def _earliest_wakeup(self, session: Session) -> float | None:
        """The time of the next session without a change of the cluster; always in the future."""
        moments = [self._closer.next_wakeup, nominations.next_wakeup(self._memory), self._half_gangs.next_wakeup,
                   self._unused_claims.next_wakeup]  # fmt: skip
        for name, call in self._dispatch.entries("next_wakeup"):
            try:
                moments.append(call())
            except HookFailed as error:
                session.results.record_failure(name, "next_wakeup", error)
        retries = [action.next_wakeup for action in self._actions]
        known = [moment for moment in (*moments, *retries) if moment is not None and moment > session.now]
        self._only_retries = len(known) == 1 and known[0] in retries
        return min(known, default=None)

    def open_session(
        self,
        now: float,
        on_commit: Callable[[list[Bind]], None] | None = None,
        cuts: Mapping[str, QueueCut] | None = None,
    ) -> Session:
        """Opens a session and its plugins. A failed plugin stops the actions: its protection would be missing."""
        changed = self._state.open_session()
        self._sessions += 1
        nodes = self._signatures.open(self._state.nodes, self._state.tree)
        session = Session(
            self._state,
            self._dispatch,
            PlacementEngine(self._signatures, self._state.columns, self._quota_hooks, nodes),
            changed,
            uid=f"session-{self._sessions}",
            now=now,
            actions=self._conf.actions,
            memory=self._memory,
            failed_attempts=self._failed_attempts,
            on_commit=on_commit,
            calls_webhooks=self._calls_webhooks,
            observe_failure=self._observe,
            deadline=SessionDeadline(
                self._session_deadline,
                self._timer,
                recorded=cuts,
                queues=len(self._state.queues),
                waiting=lambda: len({job.queue for job in self._state.active.values()}),
                ended=self._is_served if self._target else None,
            ),
        )
        if self._last_session is not None:
            self._last_session.release()
        self._last_session = session
        self._queue_warnings.report(session)
        for name, hook, start in self._starts:
            began = self._read_timer()
            try:
                start(session)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                session.results.record_failure(name, hook, error)
                self._keep_dirty(changed)
            self._time(session, "plugin", name, "OnSessionOpen", began)
        mark_oversized(session)
        return session

    def _time(
        self,
        session: Session,
        kind: Literal["action", "plugin"],
        name: str,
        phase: Literal["", "OnSessionOpen", "OnSessionClose"],
        began: float,
    ) -> None:
        if self._timer is not None:
            session.results.report.add_timing(Timing(kind, name, phase, self._timer() - began))

    def _read_timer(self) -> float:
        return 0.0 if self._timer is None else self._timer()

    def _keep_dirty(self, changed: Changes) -> None:
        """Marks the changes of a failed session again; plugins then start from everything."""
        self._state.changes.everything = True
        self._state.changes.jobs |= changed.jobs

    def _run_actions(self, session: Session, actions: Sequence[Action]) -> None:
        for action in actions:
            if self._target and self._is_served():
                break
            began = self._read_timer()
            session.deadline.begin_action()
            try:
                action.execute(session)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                plugin, hook = (error.plugin, error.hook) if isinstance(error, HookFailed) else ("", action.name)
                session.results.record_failure(plugin, hook, error, f"action {action.name}")
                self._state.changes.everything = True
            session.namespace_work.end_attempt()
            self._time(session, "action", action.name, "", began)

    def _confirm(self) -> list[Intent]:
        """`Scheduled` events of pods whose binding the watch confirmed."""
        intents: list[Intent] = []
        for task, node in [(task, task.node) for task in self._state.confirmed if task.node is not None]:
            ref = reference(task)
            message = reasons.POD_SCHEDULED.render(namespace=task.namespace, name=task.name, node=node.name)
            intents.append(EmitEvent(ref, reasons.POD_SCHEDULED.type, reasons.POD_SCHEDULED.code, message))
            self._closer.forget_pod(ref)
        self._state.confirmed.clear()
        return intents
