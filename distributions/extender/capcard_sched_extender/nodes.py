"""Calls the webhook about nodes, after all other plugins and for as few nodes as possible.

The framework ranks the nodes that the other plugins accept. The webhook is then called for the best of them, some at a
time concurrently, until it accepts one. A diagnosis, or a filter of a certain node, calls it for more nodes.

A pair of pod and node is sent again for every pod and whenever the node has changed, unless responses are cached
(`extender.cachePeriod`). Pods of one template in one job are placed in task order, so the pod that is sent is the first
of them that is pending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from capcard_sched.framework.api.node_view import Diagnosis
from capcard_sched.framework.api.plugin import OutsideError
from capcard_sched.model.refusal import Code
from capcard_sched_extender import wire
from capcard_sched_extender.port import CallFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.api.node_view import FilterResult, NodeView, PodSignature, Rows, Scores
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched_extender.objects import ExtenderArguments, Objects
    from capcard_sched_extender.port import WebhookPort

#: Cached responses; a larger cache is cleared.
_MOST_KEPT: Final = 200_000


class ScoringFailed(OutsideError):  # noqa: N818 - not an error of this program
    """The webhook returned no scores for a pod that requires them."""


class _NodeResult(NamedTuple):
    code: Code
    reason: str


_PASSED: Final = _NodeResult(Code.SUCCESS, "")


def understood(response: wire.PredicateResponse) -> _NodeResult:
    """The result in a response: an empty status passes, code 0 with a status is an error."""
    if not response.status:
        return _PASSED
    return _NodeResult(Code(response.code) if response.code else Code.ERROR, wire.readable(response.status))


class NodeCalls:
    """Implements the module's calls for one plugin instance."""

    def __init__(self, name: str, arguments: ExtenderArguments, client: WebhookPort, objects: Objects) -> None:
        """`name` of the plugin."""
        self._name = name
        #: The port of the webhook.
        self.client = client
        self._objects = objects
        self._ignorable = arguments.ignorable
        self._first = arguments.predicate_nodes
        self._most_scored = arguments.prioritize_nodes
        self._hold = arguments.seconds("cachePeriod")
        self._managed = frozenset(arguments.managed_resources)
        self._single = wire.verb(arguments.predicate_verb, wire.PredicateResponse)
        self._batch = (
            wire.verb(arguments.predicate_batch_verb, wire.PredicateBatchResponse, wire.check_results)
            if arguments.predicate_batch_verb
            else None
        )
        self._prioritize = wire.verb(arguments.prioritize_verb, wire.PrioritizeResponse, wire.check_scores)
        #: Whether a predicate verb is configured.
        self.judges = bool(arguments.predicate_verb or arguments.predicate_batch_verb)
        #: Whether the webhook rejected something, or failed, in this session.
        self.blocked = False
        self._session: Session
        self._is_open = False
        self._lazy = self._may_judge = self._scores_late = False
        #: By job key and class: node name to the pod, the node's stamp and the result.
        self._known: dict[tuple[str, int], dict[str, tuple[str, int, _NodeResult]]] = {}
        #: By job key and class: the result for all nodes without a call.
        self._defaults: dict[tuple[str, int], _NodeResult] = {}
        self._tasks: dict[PodSignature, tuple[int, Task | None]] = {}
        #: Class and node name to the node's generation, the expiry in Unix seconds, and the result.
        self._held: dict[tuple[TaskClass, str], tuple[int, float, _NodeResult]] = {}
        self._held_scores: dict[tuple[TaskClass, str], tuple[int, float, float]] = {}

    def open(self, session: Session) -> None:
        """Start a session in which the webhook is called."""
        dispatch = session.dispatch
        self._session = session
        self._is_open = True
        self.blocked = False
        deciding = dispatch.entries("best_node")
        # Another plugin that decides first, or a switch, prevents the call in `best`.
        self._may_judge = any(hook.plugin == self._name for hook in dispatch.filters)
        self._lazy = bool(deciding) and deciding[0][0] == self._name
        scoring = any(hook.plugin == self._name for hook in dispatch.scores)
        self._scores_late = self._lazy and scoring and self._most_scored > 0
        self._known.clear()
        self._defaults.clear()
        self._tasks.clear()
        if session.changed.everything or len(self._held) + len(self._held_scores) > _MOST_KEPT:
            self._held.clear()
            self._held_scores.clear()

    def close(self) -> None:
        """End the session: results stay readable, without further calls."""
        self._is_open = False

    def interested(self, cls: TaskClass) -> bool:
        """Whether the webhook manages pods of the class."""
        managed = self._managed
        return not managed or not managed.isdisjoint(cls.requests) or not managed.isdisjoint(cls.limits)

    def _task(self, signature: PodSignature) -> Task | None:
        serial = self._session.nodes.serial
        known = self._tasks.get(signature)
        if known is None or known[0] != serial:
            known = self._tasks[signature] = serial, self._find_task(signature)
        return known[1]

    def _find_task(self, signature: PodSignature) -> Task | None:
        session, key = self._session, signature.context(self._name)
        jobs = [session.jobs[key]] if key in session.jobs else list(session.with_pending_tasks())
        for job in jobs:
            pending = [task for task in job.pending.values() if task.cls is signature.cls]
            if pending:
                return min(pending, key=session.task_key)
        everyone = (task for job in jobs for task in job.tasks.values() if task.cls is signature.cls)
        return min(everyone, key=lambda task: task.uid, default=None)

    def judge(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        """Reject the nodes that the webhook rejects, among those that passed so far.

        A choice among several nodes is left to `best`, if it makes it: then only current results of this session
        reject here.
        """
        if not self.judges or not self.interested(signature.cls):
            return
        left = rows.rows[result.ok]
        task = self._task(signature)
        if task is None or not len(left):
            return
        responses, rest = self._answers(signature, task, left, result)
        refused: dict[_NodeResult, list[int]] = {}
        for row, response in responses.items():
            if response.code is not Code.SUCCESS:
                refused.setdefault(response, []).append(row)
        for response, those in sorted(refused.items()):
            result.reject(np.isin(rows.rows, those) & result.ok, response.code, response.reason)
        if rest.code is not Code.SUCCESS:
            others = ~np.isin(rows.rows, list(responses))
            result.reject(others & result.ok, rest.code, rest.reason)

    def _answers(
        self, signature: PodSignature, task: Task, left: Rows, result: FilterResult
    ) -> tuple[dict[int, _NodeResult], _NodeResult]:
        """The results of some rows, and the result of all others."""
        if not self._is_open:
            return self._results(signature, task), self._defaults.get(_key(signature, task), _PASSED)
        if self._lazy and len(left) > 1 and not isinstance(result, Diagnosis):
            return self._results(signature, task), _PASSED
        unavailable = self._unavailable(signature, task)
        if unavailable is None:
            return dict(zip(left.tolist(), self._call(signature, task, left.tolist()), strict=True)), _PASSED
        if self._hold:
            found = ((row, self._recall(signature, task, self._session.nodes.nodes[row])) for row in left.tolist())
            return {row: result for row, result in found if result is not None}, unavailable
        return self._results(signature, task), unavailable

    def best(self, signature: PodSignature, rows: Rows, scores: Scores) -> int | None:
        """The row with the highest score that the webhook accepts, -1 for none; None without a part in the choice.

        `rows`: intp [k], ascending; `scores`: float64 [k]. Raises ScoringFailed.
        """
        if not self._is_open or not (self._may_judge or self._scores_late) or not self.interested(signature.cls):
            return None
        task = self._task(signature)
        if task is None:
            return None
        order = np.argsort(-scores, kind="stable")
        if self._scores_late:
            head = np.sort(order[: self._most_scored])
            added = self._added(signature, task, [self._session.nodes.nodes[row] for row in rows[head].tolist()])
            if added is not None:
                order[: len(head)] = head[np.argsort(-(scores[head] + added), kind="stable")]
        ordered = rows[order].tolist()
        if not self._may_judge:
            return int(ordered[0])
        begin, width = 0, self._first
        while begin < len(ordered):
            unavailable = self._unavailable(signature, task)
            if unavailable is not None:
                return self._best_known(signature, task, ordered[begin:], unavailable)
            some = ordered[begin : begin + width]
            for row, response in zip(some, self._call(signature, task, some), strict=True):
                if response.code is Code.SUCCESS:
                    return int(row)
            begin, width = begin + width, width * 2
        return -1

    def _best_known(self, signature: PodSignature, task: Task, ordered: Sequence[int], unavailable: _NodeResult) -> int:
        """The first row that passes by known results, -1 for none; `unavailable` is the result of the others."""
        if unavailable is not _PASSED and not self._hold:
            return -1  # there is no result for these nodes
        nodes = self._session.nodes.nodes
        passing = (row for row in ordered if (self._recall(signature, task, nodes[row]) or unavailable) == _PASSED)
        return next(passing, -1)

    def _results(self, signature: PodSignature, task: Task) -> dict[int, _NodeResult]:
        nodes = self._session.nodes
        found: dict[int, _NodeResult] = {}
        for name, (uid, stamp, result) in self._known.get(_key(signature, task), {}).items():
            node = nodes.by_name.get(name)
            if node is not None and (not self._is_open or (uid == task.uid and nodes.stamps[node.row] == stamp)):
                found[node.row] = result
        return found

    def _recall(self, signature: PodSignature, task: Task, node: Node) -> _NodeResult | None:
        known = self._known.get(_key(signature, task), {}).get(node.name)
        if known is not None and known[0] == task.uid and known[1] == self._session.nodes.stamps[node.row]:
            return known[2]
        held = self._held.get((signature.cls, node.name)) if self._hold else None
        if held is not None and held[0] == node.generation and self._session.now < held[1]:
            return held[2]
        return None

    def _unavailable(self, signature: PodSignature, task: Task) -> _NodeResult | None:
        """The result of every node while no calls are sent; None while they are."""
        failure = self.client.unavailable(self._single.name if self._batch is None else self._batch.name)
        if failure is None:
            return None
        result = self._meaning(failure)
        if result is not _PASSED:
            self.blocked = True
            self._defaults[_key(signature, task)] = result
        return result

    def _meaning(self, failure: CallFailure) -> _NodeResult:
        return _PASSED if self._ignorable else _NodeResult(Code.ERROR, failure.message)

    def _call(self, signature: PodSignature, task: Task, rows: Sequence[int]) -> list[_NodeResult]:
        table = self._session.nodes
        nodes = [table.nodes[row] for row in rows]
        found: dict[str, _NodeResult] = {}
        unknown: list[Node] = []
        for node in nodes:
            recalled = self._recall(signature, task, node)
            if recalled is None:
                unknown.append(node)
            else:
                found[node.name] = recalled
        for node, response in zip(unknown, self._send(task, unknown) if unknown else (), strict=True):
            found[node.name] = self._meaning(response) if isinstance(response, CallFailure) else response
            if self._hold and not isinstance(response, CallFailure):
                self._held[signature.cls, node.name] = node.generation, self._session.now + self._hold, response
        known = self._known.setdefault(_key(signature, task), {})
        known.update({node.name: (task.uid, int(table.stamps[node.row]), found[node.name]) for node in nodes})
        responses = [found[node.name] for node in nodes]
        self.blocked = self.blocked or any(result != _PASSED for result in responses)
        return responses

    def _send(self, task: Task, nodes: Sequence[Node]) -> list[_NodeResult | CallFailure]:
        objects, batch = self._objects, self._batch
        if batch is None:
            responses = self.client.call(self._single, len(nodes), lambda: objects.node_bodies(task, nodes))
            return [each if isinstance(each, CallFailure) else understood(each) for each in responses]
        (response,) = self.client.call(batch, 1, lambda: [objects.nodes_body(task, nodes)])
        if isinstance(response, CallFailure):
            return [response] * len(nodes)
        results = response.results or {}
        missing = CallFailure("answer", f"the response to {batch.name} has nothing about the node in results")
        return [understood(results[node.name]) if node.name in results else missing for node in nodes]

    def scores(self, signature: PodSignature, rows: NodeView) -> Scores | None:
        """The webhook's scores of nodes: float64 [k]; None without any, or when `best` adds them.

        Raises ScoringFailed.
        """
        if not self._is_open or self._scores_late or not len(rows) or not self.interested(signature.cls):
            return None
        task = self._task(signature)
        return None if task is None else self._added(signature, task, [rows.nodes[row] for row in rows.rows.tolist()])

    def _added(self, signature: PodSignature, task: Task, nodes: Sequence[Node]) -> Scores | None:
        """The webhook's scores of the nodes: float64 [nodes]; None without any, if they are optional."""
        now, cls = self._session.now, signature.cls
        found: dict[str, float] = {}
        for node in nodes if self._hold else ():
            held = self._held_scores.get((cls, node.name))
            if held is not None and held[0] == node.generation and now < held[1]:
                found[node.name] = held[2]
        # Hypothetical rows may name a node more than once.
        unknown = list({node.name: node for node in nodes if node.name not in found}.values())
        if unknown:
            (response,) = self.client.call(self._prioritize, 1, lambda: [self._objects.nodes_body(task, unknown)])
            if isinstance(response, CallFailure):
                if self._ignorable:
                    return None
                self.blocked = True
                raise ScoringFailed(response.message)
            if response.error_message or response.node_score is None:
                self.blocked = True
                text = response.error_message or "nodeScore: expected a map of node names to numbers, got null"
                raise ScoringFailed(wire.readable(text))
            for node in unknown:
                score = found[node.name] = response.node_score.get(node.name, 0.0)
                if self._hold:
                    self._held_scores[cls, node.name] = node.generation, now + self._hold, score
        return np.array([found[node.name] for node in nodes])


def _key(signature: PodSignature, task: Task) -> tuple[str, int]:
    return task.job.key if task.job is not None else "", signature.cls.id
