"""Time-division multiplexing: revocable nodes take marked pods during the hours of their zone."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import numpy as np

from capcard_sched.framework.api.node_hooks import NODE_SPEC, filter, score
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.eviction.victim_index import may_be_evicted
from capcard_sched.framework.toolkit.node_index import NodeIndex
from capcard_sched.model.annotations import JDB_MAX_UNAVAILABLE, JDB_MIN_AVAILABLE, REVOCABLE_ZONE
from capcard_sched.model.pod_facts import admits_revocable, preemptable_of
from capcard_sched.model.refusal import Code
from capcard_sched.model.status import TaskStatus, Vote
from capcard_sched.model.timestamps import parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import tzinfo

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.api.node_view import FilterResult, NodeView, PodSignature, Rows, Scores
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue

ZONE_PREFIX = "tdm.revocable-zone."
PERIOD_KEY = "tdm.evict.period"
TIME_ZONE_KEY = "tdm.time-zone"
DEFAULT_PERIOD = "1m"
NOT_REVOCABLE = "not allow to dispatch to revocable node"

_SCORE = 100.0
_DEFAULT_EVICTIONS = 1
_WINDOW = re.compile(r"\s*(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})\s*")
_BUDGET = re.compile(r"(\d{1,9})(%?)")


class TdmArguments(msgspec.Struct, frozen=True):
    """Arguments of tdm."""

    #: Hours when the nodes labelled with the zone are active, `HH:MM-HH:MM`, both ends included; an end not after the
    #: start is on the next day.
    zones: dict[str, str] = msgspec.field(name=f"{ZONE_PREFIX}<zone>", default_factory=dict)
    #: Interval between evictions from nodes outside the hours of their zone.
    period: str = msgspec.field(name=PERIOD_KEY, default=DEFAULT_PERIOD)
    #: Time zone of the hours, such as `Asia/Shanghai`.
    time_zone: str = msgspec.field(name=TIME_ZONE_KEY, default="UTC")


class Window(NamedTuple):
    """A window in minutes of the day, both ends included."""

    start: int
    end: int

    def around(self, now: float, zone: tzinfo) -> tuple[bool, float]:
        """Whether it is open at `now` (Unix seconds), and when that changes. A window may start the day before."""
        today = datetime.fromtimestamp(now, zone).date()
        coming = []
        for days in (-1, 0, 1, 2):
            midnight = datetime(today.year, today.month, today.day, tzinfo=zone) + timedelta(days=days)
            opens = (midnight + timedelta(minutes=self.start)).timestamp()
            length = timedelta(minutes=self.end, days=int(self.end <= self.start))
            closes = (midnight + length).timestamp() + 1  # the last second is included
            if opens <= now < closes:
                return True, closes
            if opens > now:
                coming.append(opens)
        return False, min(coming)


def parse_window(text: str) -> Window | None:
    """`10:00-21:00`; None for anything else."""
    match = _WINDOW.fullmatch(text)
    if match is None:
        return None
    hours, minutes, end_hours, end_minutes = map(int, match.groups())
    if hours > 23 or end_hours > 23 or minutes > 59 or end_minutes > 59:
        return None
    return Window(hours * 60 + minutes, end_hours * 60 + end_minutes)


def _budget(text: str, total: int) -> int | None:
    """A number, or a percentage of `total` rounded up; None for other text."""
    match = _BUDGET.fullmatch(text.strip())
    if match is None:
        return None
    return -(-int(match[1]) * total // 100) if match[2] else int(match[1])


def most_evictions(job: Job) -> int:
    """Maximum number of pods of a job to evict at once, by the disruption budget in its annotations."""
    counts, total = job.counts, len(job.tasks)
    running = counts[TaskStatus.RUNNING]
    if JDB_MIN_AVAILABLE in job.annotations:
        least = _budget(job.annotations[JDB_MIN_AVAILABLE], total)
        if least is not None and running >= least:
            return running - least
        return _DEFAULT_EVICTIONS
    most = _budget(job.annotations.get(JDB_MAX_UNAVAILABLE, ""), total)
    if most is None:
        return _DEFAULT_EVICTIONS
    finished = counts[TaskStatus.SUCCEEDED] + counts[TaskStatus.FAILED]
    return max(0, most - (total - finished - running))


def is_revocable(task: Task) -> bool:
    """Whether the pod may run on revocable nodes, by its own annotation, else its PodGroup's."""
    return admits_revocable(task.cls.annotations, task.job.annotations if task.job is not None else {})


class Tdm(Plugin):
    """Schedules marked pods to the nodes of a revocable zone during the zone's hours, and evicts them afterwards.

    A label assigns a node to a zone. Jobs that are not preemptable are ordered first, and may preempt preemptable pods
    on ordinary nodes, within the disruption budget of each job.
    """

    name = "tdm"
    victims_by_usage = False
    Arguments = TdmArguments
    arguments: TdmArguments

    def setup(self) -> None:
        given = self.arguments
        self._windows = {zone: parse_window(text) for zone, text in sorted(given.zones.items())}
        self._period = parse_duration(given.period)
        self._time_zone: tzinfo = UTC if given.time_zone == "UTC" else ZoneInfo(given.time_zone)
        self._session: Session
        self._now = 0.0
        #: Zones within their hours.
        self._active: frozenset[str] = frozenset()
        self._next_change: float | None = None
        self._evicted_at = -self._period
        #: Whether nodes may have pods that a later period evicts.
        self._unfinished = False
        self._index = NodeIndex(())
        #: The code of each node's zone, -1 for none: intp [nodes]; and each zone to its code, sorted.
        self._codes: Rows = np.zeros(0, dtype=np.intp)
        self._zones: dict[str, int] = {}

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> TdmArguments:
        keys = [key for key in raw if key.startswith(ZONE_PREFIX)]
        arguments = problems.decode(TdmArguments, raw, handled=keys)
        zones: dict[str, str] = {}
        form = "hours such as 10:00-21:00"
        for key in keys:
            text = raw[key]
            if not isinstance(text, str):
                problems.error(key, "the hours of a zone must be a string; quote them", accepted=form)
                continue
            zones[key.removeprefix(ZONE_PREFIX)] = text
            if parse_window(text) is None:
                problems.warning(key, f'"{text}" is not a window of hours; the zone is never active', accepted=form)
        period, time_zone = arguments.period, arguments.time_zone
        period = problems.positive_duration(PERIOD_KEY, period, DEFAULT_PERIOD)
        try:
            ZoneInfo(time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            problems.error(TIME_ZONE_KEY, f'unknown time zone "{time_zone}"', accepted="a name such as Asia/Tokyo")
            time_zone = "UTC"
        return TdmArguments(zones, period, time_zone)

    def open(self, session: Session) -> None:
        self._session = session
        self._now = session.now
        active = []
        changes: list[float] = []
        for zone, window in self._windows.items():
            if window is not None:
                is_active, until = window.around(self._now, self._time_zone)
                changes.append(until)
                if is_active:
                    active.append(zone)
        self._active = frozenset(active)
        self._next_change = min(changes, default=None)
        self._index = self._index.renewed(session)
        codes, zones = self._index.column(REVOCABLE_ZONE)
        self._codes, self._zones = codes, {zone: code for zone, code in sorted(zones.items()) if zone}

    def next_wakeup(self) -> float | None:
        """The next change of a zone's hours that concerns a pod, or the next period with overdue evictions."""
        again = self._evicted_at + self._period if self._unfinished else None
        change = self._next_change if self._zones_in_use() else None
        return min((moment for moment in (change, again) if moment is not None), default=None)

    def _zones_in_use(self) -> bool:
        """Whether a zone has nodes, and pods on them or pending pods that may run there."""
        used = [code for zone, code in self._zones.items() if zone in self._windows]
        rows = np.flatnonzero(np.isin(self._codes, used)).tolist()
        nodes = self._session.nodes.nodes
        return bool(rows) and (
            any(nodes[row].tasks for row in rows)
            or any(is_revocable(task) for job in self._session.with_pending_tasks() for task in job.pending.values())
        )

    def signature(self, queue: Queue, task: Task) -> tuple[bool, frozenset[str]] | None:
        """Whether the pod may run on revocable nodes, and the active zones; None while no node is in a zone."""
        return (is_revocable(task), self._active) if self._zones else None

    def _problem(self, zone: str) -> str:
        """The reason why the zone's nodes take no pods, "" while the zone is active."""
        if zone in self._active:
            return ""
        if zone not in self._windows:
            return f"revocable zone {zone} not support"
        text = self.arguments.zones[zone]
        if self._windows[zone] is None:
            return f"revocable zone {text} format error"
        return f"current time beyond revocable zone {zone}:{text}"

    @filter(reads=NODE_SPEC)
    def filter_by_zone(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        context = signature.context(self.name)
        if context is None:
            return
        codes = rows.take(self._codes)
        for zone, code in self._zones.items():
            reason = self._problem(zone) or ("" if context[0] else NOT_REVOCABLE)
            if reason:
                result.reject(codes == code, Code.UNRESOLVABLE, reason)

    @score(reads=NODE_SPEC)
    def score_zones(self, signature: PodSignature, rows: NodeView) -> Scores | None:
        context = signature.context(self.name)
        if context is None or not context[0]:
            return None
        active = [code for zone, code in self._zones.items() if zone in self._active]
        return np.where(np.isin(rows.take(self._codes), active), _SCORE, 0.0) if active else None

    def job_order(self, job: Job) -> int:
        return 1 if _is_preemptable_job(job) else 0

    def job_pipelined(self, job: Job) -> Vote:
        return Vote.PERMIT if job.is_pipelined() else Vote.REJECT

    def job_starving(self, job: Job) -> bool:
        return not _is_preemptable_job(job) and job.counts[TaskStatus.PENDING] > 0

    def preemptable(self, task: Task, candidates: Sequence[Task]) -> list[Task]:
        """Preemptable running pods on ordinary nodes, for a pod that is neither preemptable nor revocable."""
        if may_be_evicted(task) or is_revocable(task):
            return []
        return _within_budgets(
            each for each in candidates if may_be_evicted(each) and _runs(each) and not _zone_of(each)
        )

    def eviction_version(self, hook: str, queue: Queue, role: str) -> tuple[()]:
        """Empty: annotations, budgets of jobs and labels of nodes decide; hours open and close nodes only."""
        return ()

    def victim_tasks(self, tasks: Sequence[Task]) -> list[Task]:
        """Preemptable running pods on nodes of a zone outside its hours; at most once per period."""
        if self._now < self._evicted_at + self._period:
            self._unfinished = True
            return []
        overdue = [
            each
            for each in tasks
            if _runs(each)
            and may_be_evicted(each)
            and (zone := _zone_of(each)) in self._windows
            and zone not in self._active
        ]
        victims = _within_budgets(overdue, _budgets_of_overdue(overdue))
        self._unfinished = bool(overdue)
        if overdue:
            self._evicted_at = self._now
        return victims


def _is_preemptable_job(job: Job) -> bool:
    return preemptable_of(job.annotations, job.labels) is True


def _runs(task: Task) -> bool:
    return task.status is TaskStatus.RUNNING and task.job is not None


def _zone_of(task: Task) -> str:
    return task.node.labels.get(REVOCABLE_ZONE, "") if task.node is not None else ""


def _budgets_of_overdue(overdue: Iterable[Task]) -> dict[str, int]:
    """Jobs to be evicted as a unit, with their number of pods.

    Action shuffle does not break a gang, so single evictions would never remove a gang without slack. Such a gang is
    evicted at once when the hours are over for all its pods and it has no disruption budget of its own.
    """
    found: dict[str, int] = {}
    for job, count in Counter(task.job for task in overdue).items():
        assert job is not None
        budgeted = JDB_MIN_AVAILABLE in job.annotations or JDB_MAX_UNAVAILABLE in job.annotations
        live = job.ready_tasks - job.counts[TaskStatus.SUCCEEDED]
        if not budgeted and count == live and job.min_available > 1 and job.ready_tasks <= job.min_available:
            found[job.key] = count
    return found


def _within_budgets(candidates: Iterable[Task], budgets: Mapping[str, int] = MappingProxyType({})) -> list[Task]:
    """The first candidates of each job up to its budget: `budgets` by job key, else its own."""
    left = dict(budgets)
    victims = []
    for task in candidates:
        job = task.job
        assert job is not None, task
        if job.key not in left:
            left[job.key] = most_evictions(job)
        if left[job.key] > 0:
            left[job.key] -= 1
            victims.append(task)
    return victims
