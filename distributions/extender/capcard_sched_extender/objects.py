"""The arguments of the extender plugin, and the objects of a session as extenders see them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from capcard_sched.framework.api.problems import shown_text
from capcard_sched.framework.eviction.victim_index import may_be_evicted
from capcard_sched.model.annotations import REVOCABLE_ZONE
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.model.timestamps import DurationError, format_duration, parse_duration
from capcard_sched_extender import wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector

_PREFIX: Final = "extender."
URL_KEY: Final = f"{_PREFIX}urlPrefix"
DEFAULT_TIMEOUT: Final = "1s"
DEFAULT_SESSION_TIMEOUT: Final = "10s"
DEFAULT_BREAKER_PERIOD: Final = "30s"
DEFAULT_RETRY_PERIOD: Final = "10s"

_URL: Final = re.compile(r"https?://(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::(\d{1,5}))?(?:/[^\s?#]*)?")
#: Key of a duration to its default, and whether 0 is valid.
_DURATIONS: Final = {
    "httpTimeout": (DEFAULT_TIMEOUT, False),
    "sessionTimeout": (DEFAULT_SESSION_TIMEOUT, False),
    "breakerPeriod": (DEFAULT_BREAKER_PERIOD, False),
    "retryPeriod": (DEFAULT_RETRY_PERIOD, False),
    "cachePeriod": ("0s", True),
}


class ExtenderArguments(msgspec.Struct, frozen=True):
    """Arguments of extender. A verb that is empty is not called."""

    #: Prefix of every verb: `http://host:port/path`; trailing slashes are ignored.
    url_prefix: str = msgspec.field(name=URL_KEY, default="")
    #: Timeout of one call.
    http_timeout: str = msgspec.field(name=f"{_PREFIX}httpTimeout", default=DEFAULT_TIMEOUT)
    #: Gets the cluster when a session opens. An empty verb, this one or another, is not called.
    session_open_verb: str = msgspec.field(name=f"{_PREFIX}onSessionOpenVerb", default="")
    #: Called when a session closes.
    session_close_verb: str = msgspec.field(name=f"{_PREFIX}onSessionCloseVerb", default="")
    #: Filters one node for a pod.
    predicate_verb: str = msgspec.field(name=f"{_PREFIX}predicateVerb", default="")
    #: Not in Volcano: filters several nodes in one call, instead of `predicateVerb`.
    predicate_batch_verb: str = msgspec.field(name=f"{_PREFIX}predicateBatchVerb", default="")
    #: Scores nodes for a pod.
    prioritize_verb: str = msgspec.field(name=f"{_PREFIX}prioritizeVerb", default="")
    #: Selects victims in the queue of the preemptor.
    preemptable_verb: str = msgspec.field(name=f"{_PREFIX}preemptableVerb", default="")
    #: Selects victims in other queues.
    reclaimable_verb: str = msgspec.field(name=f"{_PREFIX}reclaimableVerb", default="")
    #: Decides whether a queue gets nothing more in this session.
    queue_overused_verb: str = msgspec.field(name=f"{_PREFIX}queueOverusedVerb", default="")
    #: Votes on the admission of a job.
    job_enqueueable_verb: str = msgspec.field(name=f"{_PREFIX}jobEnqueueableVerb", default="")
    #: Called when a job is admitted.
    job_enqueued_verb: str = msgspec.field(name=f"{_PREFIX}jobEnqueuedVerb", default="")
    #: Decides whether the placed pods of a job may start.
    job_ready_verb: str = msgspec.field(name=f"{_PREFIX}jobReadyVerb", default="")
    #: Called when a pod is placed; may reject the placement.
    allocate_verb: str = msgspec.field(name=f"{_PREFIX}allocateFuncVerb", default="")
    #: Called when a placed pod is removed.
    deallocate_verb: str = msgspec.field(name=f"{_PREFIX}deallocateFuncVerb", default="")
    #: Whether a failed call is ignored; otherwise it counts as a rejection.
    ignorable: bool = msgspec.field(name=f"{_PREFIX}ignorable", default=False)
    #: Resources: the webhook is called only for pods with one of them in requests or limits; empty: for all pods.
    managed_resources: tuple[str, ...] = msgspec.field(name=f"{_PREFIX}managedResources", default=())
    #: Not in Volcano: budget of all calls of a session; calls beyond it fail.
    session_timeout: str = msgspec.field(name=f"{_PREFIX}sessionTimeout", default=DEFAULT_SESSION_TIMEOUT)
    #: Not in Volcano: maximum number of concurrent calls, each on a kept-alive connection.
    connections: Annotated[int, msgspec.Meta(ge=1, le=256)] = msgspec.field(name=f"{_PREFIX}connections", default=16)
    #: Not in Volcano: number of nodes in the first round of predicate calls, best score first; each round doubles it.
    predicate_nodes: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(name=f"{_PREFIX}predicateNodes", default=4)
    #: Not in Volcano: number of nodes, best by all other scores, that the webhook scores; 0: all.
    prioritize_nodes: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name=f"{_PREFIX}prioritizeNodes", default=0)
    #: Not in Volcano: failures in a row that open the circuit breaker; 0: never.
    breaker_failures: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name=f"{_PREFIX}breakerFailures", default=5)
    #: Not in Volcano: how long the circuit breaker stays open.
    breaker_period: str = msgspec.field(name=f"{_PREFIX}breakerPeriod", default=DEFAULT_BREAKER_PERIOD)
    #: Not in Volcano: delay of the next session after a rejection or failure, without another change.
    retry_period: str = msgspec.field(name=f"{_PREFIX}retryPeriod", default=DEFAULT_RETRY_PERIOD)
    #: Not in Volcano: how long results for a template on an unchanged node are cached; 0s: not at all.
    cache_period: str = msgspec.field(name=f"{_PREFIX}cachePeriod", default="0s")

    def seconds(self, key: str) -> float:
        """A duration by its key without prefix, such as `httpTimeout`; the default when it is invalid."""
        default, zero = _DURATIONS[key]
        written = next(
            getattr(self, field.name) for field in msgspec.structs.fields(self) if field.encode_name == _PREFIX + key
        )
        found = _duration(written, zero=zero)
        return parse_duration(default) if found is None else found

    @property
    def verbs(self) -> tuple[str, ...]:
        fields = msgspec.structs.fields(self)
        written = (getattr(self, field.name) for field in fields if field.encode_name.endswith("Verb"))
        return tuple(verb for verb in written if verb)


def _duration(text: str, *, zero: bool) -> float | None:
    """Seconds; None for an invalid duration."""
    try:
        seconds = parse_duration(text)
    except DurationError:
        return None
    return seconds if seconds > 0 or (zero and seconds == 0) else None


def is_url(text: str) -> bool:
    """Whether verbs can be appended to it: `http` or `https`, a host, perhaps a port and a path."""
    match = _URL.fullmatch(text)
    return match is not None and (match[1] is None or 0 < int(match[1]) < 65536)


def parse(raw: Mapping[str, object], problems: ArgumentReader) -> ExtenderArguments:
    """Read the arguments of a scheduler-conf and report their problems."""
    arguments = problems.decode(ExtenderArguments, raw)
    for key, (default, zero) in _DURATIONS.items():
        written = raw.get(_PREFIX + key)
        if isinstance(written, str) and _duration(written, zero=zero) is None:
            problems.warning(
                _PREFIX + key,
                f'"{shown_text(written)}" is not a duration{"" if zero else " above 0"}; '
                f"{format_duration(parse_duration(default))} is used",
                accepted="a duration such as 500ms, 1s or 1m30s",
            )
    if arguments.verbs and not is_url(arguments.url_prefix):
        problems.warning(
            URL_KEY,
            f'"{shown_text(arguments.url_prefix)}" is not a URL that verbs can be appended to; '
            f"every call fails, with the consequence of {_PREFIX}ignorable",
            accepted="http:// or https://, a host and perhaps a path, such as http://extender.example:8080/v1",
        )
    if not arguments.verbs:
        problems.warning(URL_KEY, "no verb is configured; the webhook is never called")
    return arguments


_encode: Final = msgspec.json.Encoder().encode
#: Encoded nodes kept from session to session.
_MOST_NODES: Final = 20_000


def resource(amounts: Mapping[str, int]) -> wire.Resource:
    """Amounts by name, base units."""
    scalars = {name: amount for name, amount in sorted(amounts.items()) if name not in (CPU, MEMORY)}
    return wire.Resource(amounts.get(CPU, 0), amounts.get(MEMORY, 0), scalars)


def _optional(amounts: Mapping[str, int] | None) -> wire.Resource | None:
    return None if amounts is None else resource(amounts)


def task_info(task: Task) -> wire.TaskInfo:
    """A pod as it is now."""
    cls, job = task.cls, task.job
    requested = resource(cls.requests)
    return wire.TaskInfo(
        uid=task.uid,
        job=job.key if job is not None else "",
        name=task.name,
        namespace=task.namespace,
        task_role=task.role,
        resreq=requested,
        init_resreq=requested,
        node_name=task.node.name if task.node is not None else "",
        status=task.status.title,
        priority=task.priority,
        preemptable=may_be_evicted(task),
        best_effort=cls.best_effort,
        labels=dict(task.labels),
        annotations=dict(cls.annotations),
        node_selector=dict(cls.node_selector),
        creation_timestamp=task.created,
    )


class Objects:
    """The objects of one session. The JSON of nodes is cached until they change."""

    def __init__(self) -> None:
        self._session: Session
        #: Name to the node, its stamp and generation, and its JSON.
        self._nodes: dict[str, tuple[Node, int, int, msgspec.Raw]] = {}

    def open(self, session: Session) -> None:
        self._session = session
        if session.changed.everything or len(self._nodes) > _MOST_NODES:
            self._nodes.clear()

    def _amounts(self, vector: Vector) -> wire.Resource:
        return resource(self._session.resources.amounts(vector))

    def _node_info(self, node: Node) -> wire.NodeInfo:
        table, row = self._session.nodes, node.row
        used, allocatable = table.used[row], table.allocatable[row]
        return wire.NodeInfo(
            name=node.name,
            labels=dict(node.labels),
            annotations=dict(node.annotations),
            taints=[wire.WireTaint(taint.key, taint.value, taint.effect) for taint in node.taints],
            unschedulable=node.unschedulable,
            allocatable=self._amounts(allocatable),
            capability=resource(node.capacity),
            used=self._amounts(used),
            idle=self._amounts(allocatable - used),
            releasing=self._amounts(table.releasing[row]),
            pipelined=self._amounts(table.pipelined[row]),
            tasks={uid: _placed(task) for uid, task in sorted(node.tasks.items())},
        )

    def node(self, node: Node) -> msgspec.Raw:
        stamp, known = int(self._session.nodes.stamps[node.row]), self._nodes.get(node.name)
        if known is not None and known[0] is node and known[1:3] == (stamp, node.generation):
            return known[3]
        text = msgspec.Raw(_encode(self._node_info(node)))
        self._nodes[node.name] = node, stamp, node.generation, text
        return text

    def job(self, job: Job) -> wire.JobInfo:
        return wire.JobInfo(
            uid=job.key,
            pg_uid=job.uid,
            name=job.name,
            namespace=job.namespace,
            queue=job.queue,
            priority=job.priority,
            min_available=job.min_available,
            task_min_available=dict(job.min_task_member),
            phase=job.phase.value,
            min_resources=_optional(job.min_resources),
            allocated=self._amounts(job.allocated),
            total_request=self._amounts(job.total_request),
            labels=dict(job.labels),
            annotations=dict(job.annotations),
            creation_timestamp=job.created,
            tasks={uid: task_info(task) for uid, task in sorted(job.tasks.items())},
        )

    def queue(self, queue: Queue) -> wire.QueueInfo:
        return wire.QueueInfo(
            uid=queue.uid,
            name=queue.name,
            weight=queue.weight,
            priority=queue.priority,
            parent=queue.parent,
            state=queue.state or "Open",
            reclaimable=queue.reclaimable,
            capability=_optional(queue.capability),
            deserved=_optional(queue.deserved),
            guarantee=_optional(queue.guarantee),
            allocated=self._amounts(queue.allocated),
            labels=dict(queue.labels),
            annotations=dict(queue.annotations),
        )

    def session_body(self) -> bytes:
        """The whole cluster. O(nodes + pods)."""
        session = self._session
        nodes = {node.name: self.node(node) for node in session.nodes.nodes}
        revocable = {node.name: nodes[node.name] for node in session.nodes.nodes if REVOCABLE_ZONE in node.labels}
        return _encode(
            {
                "Jobs": {key: self.job(job) for key, job in sorted(session.jobs.items())},
                "Nodes": nodes,
                "Queues": {name: self.queue(queue) for name, queue in sorted(session.queues.items())},
                "NamespaceInfo": {
                    name: wire.NamespaceInfo(name, dict(labels))
                    for name, labels in sorted(session.snapshot.namespaces.items())
                },
                "RevocableNodes": revocable,
                "NodeList": [],
            }
        )

    def job_body(self, job: Job) -> bytes:
        return _encode(wire.JobRequest(self.job(job)))

    def queue_body(self, queue: Queue) -> bytes:
        return _encode(wire.QueueRequest(self.queue(queue)))

    def nodes_body(self, task: Task, nodes: Iterable[Node]) -> bytes:
        return _encode({"task": task_info(task), "nodes": [self.node(node) for node in nodes]})

    def node_bodies(self, task: Task, nodes: Iterable[Node]) -> list[bytes]:
        sent = msgspec.Raw(_encode(task_info(task)))
        return [_encode({"task": sent, "node": self.node(node)}) for node in nodes]


def task_body(task: Task) -> bytes:
    return _encode(wire.TaskRequest(task_info(task)))


def victims_body(task: Task, candidates: Iterable[Task]) -> bytes:
    return _encode(wire.VictimsRequest(task_info(task), [task_info(each) for each in candidates]))


def _placed(task: Task) -> wire.PlacedTask:
    return wire.PlacedTask(
        uid=task.uid,
        job=task.job.key if task.job is not None else "",
        name=task.name,
        namespace=task.namespace,
        task_role=task.role,
        resreq=resource(task.cls.requests),
        priority=task.priority,
    )
