"""The transaction of a session: placements and evictions that are committed together or not at all.

Every operation applies at once, in the state, and is recorded; `discard` undoes the records in reverse. Nothing is
copied. When a plugin fails in its notification, that operation alone is undone.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import UNSET, UnsetType

from capcard_sched.framework.api.dispatch import HookFailed
from capcard_sched.framework.api.plugin import Placement
from capcard_sched.framework.backlog.task_outcome import TaskOutcome
from capcard_sched.model.annotations import QUEUE_ALLOCATION_GATE
from capcard_sched.model.intents import NO_ANNOTATIONS, Bind, Evict
from capcard_sched.model.kube_groups import kube_name
from capcard_sched.model.status import ALLOCATED, BINDING, BOUND, PIPELINED, RUNNING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.intents import ClaimAllocation, ClaimBinding
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.status import TaskStatus


#: Statuses of tasks that keep their node.
_STAYING: Final = (ALLOCATED, BINDING, BOUND, RUNNING)


class EvictionOperation(NamedTuple):
    """An eviction of a statement."""

    task: Task
    node: Node
    former: TaskStatus
    reason: str
    message: str
    cause: tuple[str, str]
    #: The names that were not marked as changed before.
    unmarked: list[tuple[set[str], str]]


def _whole_group(job: Job | None) -> tuple[str, str] | UnsetType:
    """Name and uid of a PodGroup of `scheduling.k8s.io` of which no pod stays on a node; unset for others."""
    name = kube_name(job.name) if job is not None else ""
    return UNSET if job is None or not name or job.count(_STAYING) else (name, job.uid)


class _Additions(NamedTuple):
    """What plugins add to the bindings of a commit, by uid of the pod."""

    annotations: dict[str, dict[str, str]]
    volumes: dict[str, tuple[ClaimBinding, ...]]
    node_locks: dict[str, str]
    #: Binding locks of nodes.
    shared: dict[str, str]
    claims: dict[str, tuple[ClaimAllocation, ...]]
    #: Keys of the jobs whose pods are bound once all their claims are allocated.
    gangs: frozenset[str]


class Statement:
    """A list of operations on one session."""

    __slots__ = ("_records", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._records: list[Placement | EvictionOperation] = []

    def __len__(self) -> int:
        return len(self._records)

    def allocate(self, job: Job, tasks: list[Task], nodes: list[Node]) -> None:
        """Places pending tasks of one class on idle capacity of nodes. Raises HookFailed and leaves nothing behind."""
        self._place(job, tasks, nodes, ALLOCATED)

    def pipeline(self, job: Job, tasks: list[Task], nodes: list[Node]) -> None:
        """Places pending tasks on capacity that is being released. Raises HookFailed and leaves nothing behind."""
        self._place(job, tasks, nodes, PIPELINED)

    def _place(self, job: Job, tasks: list[Task], nodes: list[Node], status: TaskStatus) -> None:
        session = self._session
        session.state.place(job, tasks, nodes, status)
        session.results.count_pipelined(len(tasks) if status is PIPELINED else 0)
        placement = Placement(job, tasks[0].cls, tasks, nodes)
        try:
            session.dispatch.notify("on_allocate", placement)
        except Exception:
            self._unplace(placement)
            raise
        self._records.append(placement)

    def _unplace(self, placement: Placement) -> None:
        session = self._session
        session.results.count_pipelined(-len(placement.tasks) if placement.tasks[0].status is PIPELINED else 0)
        try:
            session.dispatch.notify("on_deallocate", placement)
        finally:
            session.state.unplace(placement.job, placement.tasks)

    @property
    def operations(self) -> list[Placement | EvictionOperation]:
        """All operations so far, in order."""
        return list(self._records)

    @property
    def evicted(self) -> list[Task]:
        """Tasks evicted by the statement so far, in order."""
        return [record.task for record in self._records if isinstance(record, EvictionOperation)]

    @property
    def pipelined(self) -> list[Placement]:
        """Placements on capacity that is being released."""
        return [
            record for record in self._records if isinstance(record, Placement) and record.tasks[0].status is PIPELINED
        ]

    def pipelines_since(self, length: int) -> bool:
        """Whether an operation since the statement had `length` of them uses capacity that is being released."""
        return any(
            isinstance(record, Placement) and record.tasks[0].status is PIPELINED for record in self._records[length:]
        )

    @property
    def placements(self) -> list[Placement]:
        """All placements so far, in order."""
        return [record for record in self._records if isinstance(record, Placement)]

    def evict(self, task: Task, reason: str, message: str = "", *, by: str = "", queue: str = "") -> None:
        """Marks a placed task as releasing. Raises HookFailed and leaves nothing behind.

        `message` continues the sentence "Pod is evicted, because of" and is the reason when empty; `by` is the
        preemptor (`namespace/name`) and `queue` its queue, "" when there is none.
        """
        session, job, node = self._session, task.job, task.node
        assert job is not None, task
        assert node is not None, task
        placement = Placement(job, task.cls, [task], [node])
        try:
            session.dispatch.notify("on_deallocate", placement)
        except HookFailed:
            session.dispatch.notify("on_allocate", placement)
            raise
        unmarked = [(marked, name) for marked, name in self._marks(task, node) if name not in marked]
        former = session.state.release(task)
        session.engine.note_release()
        session.results.report.count_eviction()
        self._records.append(EvictionOperation(task, node, former, reason, message or reason, (by, queue), unmarked))

    def _marks(self, task: Task, node: Node) -> tuple[tuple[set[str], str], ...]:
        """The names that the eviction of a pod marks as changed."""
        dirty, job = self._session.state.changes, task.job
        assert job is not None, task
        return (dirty.jobs, job.key), (dirty.queues, job.queue), (dirty.nodes, node.name)

    def discard(self) -> None:
        """Undoes everything, last first. The node of each placement is kept for the task's message.

        A plugin that fails in its notification is recorded; the rest is undone all the same.
        """
        self._undo(0, record_outcomes=True)

    def rollback(self, length: int) -> None:
        """Undoes the operations since the statement had `length` of them, last first, without recording outcomes."""
        self._undo(length, record_outcomes=False)

    def take_back(self, uids: Container[str]) -> list[Placement]:
        """Undoes all placements, last first, and the evictions of some pods, by uid. Returns the placements, in order.

        The other evictions stay as they are.
        """
        placements = self.placements
        evictions = [record for record in self._records if isinstance(record, EvictionOperation)]
        kept = [record for record in evictions if record.task.uid not in uids]
        self._records = [*kept]
        for placement in reversed(placements):
            self._revert(placement)
        gone = [record for record in evictions if record.task.uid in uids]
        self._pass_marks(gone, kept)
        for eviction in reversed(gone):
            self._revert(eviction)
        return placements

    def _pass_marks(self, evictions: Iterable[EvictionOperation], others: Iterable[EvictionOperation]) -> None:
        """Leaves the evictions the marks that none of `others` needs, which get the rest."""
        marking = [one for one in evictions if one.unmarked]
        if not marking:
            return
        heirs = {(id(marked), name): one for one in others for marked, name in self._marks(one.task, one.node)}
        for eviction in marking:
            own: list[tuple[set[str], str]] = []
            for marked, name in eviction.unmarked:
                heir = heirs.get((id(marked), name))
                (own if heir is None else heir.unmarked).append((marked, name))
            eviction.unmarked[:] = own

    def _undo(self, length: int, *, record_outcomes: bool) -> None:
        session = self._session
        while len(self._records) > length:
            record = self._records.pop()
            if record_outcomes and isinstance(record, Placement):
                for task, node in zip(record.tasks, record.nodes, strict=True):
                    allocated = task.status is ALLOCATED
                    outcome = TaskOutcome("schedulable" if allocated else "pipelined", "", node.name)
                    session.results.set_outcome(task, outcome)
            self._revert(record)

    def _revert(self, record: Placement | EvictionOperation) -> None:
        """Undoes a record that is no longer listed."""
        try:
            if isinstance(record, Placement):
                self._unplace(record)
            else:
                self._restore(record)
        except HookFailed as error:
            subject = record.job if isinstance(record, Placement) else record.task
            self._session.results.record_hook_error(subject, error)

    def _restore(self, eviction: EvictionOperation) -> None:
        task, session = eviction.task, self._session
        assert task.job is not None, task
        session.state.unrelease(task, eviction.former)
        for marked, name in eviction.unmarked:  # nothing changed: no reason for another session
            marked.discard(name)
        session.dispatch.notify("on_allocate", Placement(task.job, task.cls, [task], [eviction.node]))

    def commit(self) -> None:
        """Turns binds and evictions into intents; allocated tasks become BINDING, pipelined ones stay pipelined.

        All tasks of the statement are reserved in the state before the first intent is handed over. Raises HookFailed
        before anything is committed when a plugin fails to provide annotations, volumes or claims.
        """
        session = self._session
        bound = [
            record for record in self._records if isinstance(record, Placement) and record.tasks[0].status is ALLOCATED
        ]
        more = self._additions(bound)
        binds: list[Bind] = []
        for record in self._records:
            if isinstance(record, EvictionOperation):
                task = record.task
                by, queue = record.cause
                session.results.add_eviction(
                    Evict(
                        task.namespace,
                        task.name,
                        task.uid,
                        record.reason,
                        record.message,
                        record.node.name,
                        by,
                        queue,
                        _whole_group(task.job),
                    )
                )
            elif record.tasks[0].status is ALLOCATED:
                session.state.set_binding(record.job, record.tasks)
                for task in record.tasks if more.annotations else ():
                    session.state.assume_device_notes(task, more.annotations.get(task.uid, {}))
                binds += _binds_of(record, more)
                for task, node in zip(record.tasks, record.nodes, strict=True) if more.volumes else ():
                    session.state.assume_volumes(task, node.name, more.volumes.get(task.uid, ()))
                session.results.report.add_placement(record)
                session.results.drop_outcomes(record.tasks)
            else:
                session.results.keep_pipeline(record)
        self._records.clear()
        session.results.add_binds(binds)

    def _additions(self, bound: Sequence[Placement]) -> _Additions:
        claims = self._by_uid("bind_claims", bound)
        return _Additions(
            self._annotations(bound),
            self._volumes(bound),
            self._by_uid("node_lock", bound),
            self._by_uid("binding_lock", bound),
            claims,
            _gangs(bound) if claims else frozenset(),
        )

    def _annotations(self, bound: Sequence[Placement]) -> dict[str, dict[str, str]]:
        """The annotations that plugins add to each binding, by uid; pods without any are absent."""
        found: dict[str, dict[str, str]] = {}
        for wanted in self._wanted("bind_annotations", bound):
            for uid, notes in wanted.items():
                found.setdefault(uid, {}).update(notes)
        return found

    def _volumes(self, bound: Sequence[Placement]) -> dict[str, tuple[ClaimBinding, ...]]:
        """The volume bindings of each pod before its own, by uid; pods without any are absent."""
        found: dict[str, tuple[ClaimBinding, ...]] = {}
        for wanted in self._wanted("bind_volumes", bound):
            for uid, bindings in wanted.items():
                found[uid] = (*found.get(uid, ()), *bindings)
        return found

    def _by_uid(self, hook: str, bound: Sequence[Placement]) -> dict[str, Any]:
        """The results of a hook for each pod by uid."""
        if not self._session.dispatch.plain_entries(hook):
            return {}
        return {uid: found for wanted in self._wanted(hook, bound) for uid, found in wanted.items()}

    def _wanted(self, hook: str, bound: Sequence[Placement]) -> list[Mapping[str, Any]]:
        """The results of a hook, by task uid, for the placements to be bound."""
        plugin, found = "", []
        try:
            for plugin, call in self._session.dispatch.plain_entries(hook):  # noqa: B007 - read by the handler
                for record in bound:
                    wanted = call(record)
                    if wanted:
                        found.append(wanted)
        except Exception as error:
            raise HookFailed(plugin, hook, error) from error
        return found

    def keep(self) -> None:
        """Keeps the operations until the session closes, which undoes them: a pipelined gang."""
        session = self._session
        for record in self._records:
            assert isinstance(record, Placement)
            session.results.keep_pipeline(record)
        self._records.clear()


def _binds_of(record: Placement, more: _Additions) -> list[Bind]:
    """The bindings of a placement."""
    namespace, queue, gate = record.job.namespace, record.job.queue, QUEUE_ALLOCATION_GATE
    annotations, volumes, locks, shared, claims, gangs = more
    devices = {node: _with_devices(node) for node in set(record.nodes)} if shared else {}
    gang = record.job.key if record.job.key in gangs else UNSET
    return [
        Bind(
            namespace,
            task.name,
            uid := task.uid,
            node.name,
            annotations.get(uid) or NO_ANNOTATIONS,
            volumes.get(uid, ()) if volumes else (),
            locks.get(uid, "") if locks else "",
            queue,
            shared.get(uid, "") if shared else "",
            devices[node] if uid in shared else (),
            claims.get(uid) or UNSET if claims else UNSET,
            gang,
            gate if task.gates else UNSET,
        )
        for task, node in zip(record.tasks, record.nodes, strict=True)
    ]


def _with_devices(node: Node) -> tuple[str, ...]:
    """The uids of the pods on a node that have devices."""
    return tuple([uid for uid, task in node.tasks.items() if task.device_notes])


def _gangs(bound: Sequence[Placement]) -> frozenset[str]:
    """The keys of the jobs that several pods of a commit make ready together."""
    counts: Counter[str] = Counter()
    for record in bound:
        counts[record.job.key] += len(record.tasks)
    return frozenset(
        record.job.key
        for record in bound
        if counts[record.job.key] > 1 and record.job.ready_tasks - counts[record.job.key] < record.job.min_available
    )


def quotas_admit(session: Session, job: Job, count: int, free: int) -> bool:
    """Whether quotas admit `count` pending pods of a job with one signature, in every action it takes part in.

    `free`: the most of them that have capacity, below `count`. May raise HookFailed.
    """
    queue, tasks, engine = session.queues[job.queue], list(job.pending.values())[:count], session.engine
    signature = engine.signature(queue, tasks[0])
    if session.overused(queue) or engine.quota_grant(queue, signature, tasks).count < count:
        return False
    if "reclaim" not in session.actions or not session.may_reclaim(job):
        return True
    statement = Statement(session)
    try:
        with session.assumptions.plan_nominations():
            for task in tasks[: free + 1]:
                if session.dispatch.refusal("preemptive", queue, task) is not None:
                    return False
                if task is tasks[free]:
                    break
                row = engine.choose(signature, engine.candidates(signature, future=True), future=True)
                if row < 0:
                    break
                statement.pipeline(job, [task], [session.nodes.nodes[row]])
    finally:
        statement.rollback(0)
    return True
