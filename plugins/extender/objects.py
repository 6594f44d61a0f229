"""Converts the objects of a session to those of extenders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.model.annotations import REVOCABLE_ZONE
from capcard_sched.model.pod_facts import preemptable_of
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.plugins.extender import wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector

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
    preemptable = task.preemptable
    if preemptable is None and job is not None:
        preemptable = preemptable_of(job.annotations, job.labels)
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
        preemptable=preemptable is not False,
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
        """Use the objects of this session."""
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
        """A node of the session, as JSON."""
        stamp, known = int(self._session.nodes.stamps[node.row]), self._nodes.get(node.name)
        if known is not None and known[0] is node and known[1:3] == (stamp, node.generation):
            return known[3]
        text = msgspec.Raw(_encode(self._node_info(node)))
        self._nodes[node.name] = node, stamp, node.generation, text
        return text

    def job(self, job: Job) -> wire.JobInfo:
        """A job as it is now."""
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
        """A queue as it is now."""
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

    # --- requests ---------------------------------------------------------------------------------------------------

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
                    name: wire.NamespaceInfo(name, dict(labels)) for name, labels in sorted(session.namespaces.items())
                },
                "RevocableNodes": revocable,
                "NodeList": [],
            }
        )

    def job_body(self, job: Job) -> bytes:
        """A request about a job."""
        return _encode(wire.JobRequest(self.job(job)))

    def queue_body(self, queue: Queue) -> bytes:
        """A request about a queue."""
        return _encode(wire.QueueRequest(self.queue(queue)))

    def nodes_body(self, task: Task, nodes: Iterable[Node]) -> bytes:
        """A request about a pod and several nodes."""
        return _encode({"task": task_info(task), "nodes": [self.node(node) for node in nodes]})

    def node_bodies(self, task: Task, nodes: Iterable[Node]) -> list[bytes]:
        """Requests about a pod and one node each."""
        sent = msgspec.Raw(_encode(task_info(task)))
        return [_encode({"task": sent, "node": self.node(node)}) for node in nodes]


def task_body(task: Task) -> bytes:
    """A request about a pod."""
    return _encode(wire.TaskRequest(task_info(task)))


def victims_body(task: Task, candidates: Iterable[Task]) -> bytes:
    """A request about candidate victims for a pod."""
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
