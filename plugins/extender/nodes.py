"""What the webhook says about pods on nodes: asked last, and about as few nodes as will do.

The framework ranks all nodes that nobody else refuses; then the webhook is asked about the best of them, some at a time
side by side, until one may take the pod. Only who must know about a certain node, or why there is none, asks for more.

A pair is asked anew for every pod and whenever the node has changed, unless the operator lets answers hold for a while
(plugins reference §16, §25). Pods of one template in one job are placed in task order, so the pod that is meant is the
first of them that pends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from capcard_sched.framework.api.node_view import Diagnosis
from capcard_sched.framework.api.plugin import OutsideError
from capcard_sched.model.refusal import Code
from capcard_sched.plugins.extender import wire
from capcard_sched.plugins.extender.client import CallFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.api.node_view import FilterResult, NodeView, PodSignature, Rows, Scores
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.extender.arguments import ExtenderArguments
    from capcard_sched.plugins.extender.client import WebhookClient
    from capcard_sched.plugins.extender.objects import Objects

#: Answers that hold for a while; beyond that all are forgotten.
_MOST_KEPT: Final = 200_000


class ScoringFailed(OutsideError):  # noqa: N818 - it says what happened
    """The webhook has no scores for a pod that may not be placed without."""


class _Said(NamedTuple):
    """Whether a pod may go to a node."""

    code: Code
    reason: str


_YES: Final = _Said(Code.SUCCESS, "")


def understood(answer: wire.PredicateAnswer) -> _Said:
    """The code and reason of an answer: an empty status passes, code 0 with a status is an error."""
    if not answer.status:
        return _YES
    return _Said(Code(answer.code) if answer.code else Code.ERROR, wire.readable(answer.status))


class NodeQuestions:
    """See the module docstring."""

    def __init__(self, name: str, arguments: ExtenderArguments, client: WebhookClient, objects: Objects) -> None:
        """`name` of the plugin."""
        self._name = name
        self._client = client
        self._objects = objects
        self._ignorable = arguments.ignorable
        self._first = arguments.predicate_nodes
        self._most_scored = arguments.prioritize_nodes
        self._hold = arguments.seconds("cachePeriod")
        self._managed = frozenset(arguments.managed_resources)
        self._single = wire.question(arguments.predicate_verb, wire.PredicateAnswer)
        self._batch = (
            wire.question(arguments.predicate_batch_verb, wire.PredicateBatchAnswer, wire.check_results)
            if arguments.predicate_batch_verb
            else None
        )
        self._prioritize = wire.question(arguments.prioritize_verb, wire.PrioritizeAnswer, wire.check_scores)
        #: Whether there is a predicate at all.
        self.judges = bool(arguments.predicate_verb or arguments.predicate_batch_verb)
        #: Something was refused, or had no answer, in this session.
        self.in_the_way = False
        self._session: Session
        self._is_open = False
        self._lazy = self._may_judge = self._scores_late = False
        #: By job key and class: node name to the pod it was about, the node's stamp, and what was said.
        self._known: dict[tuple[str, int], dict[str, tuple[str, int, _Said]]] = {}
        #: By job key and class: what counted for all nodes that were not asked about.
        self._unsaid: dict[tuple[str, int], _Said] = {}
        self._tasks: dict[PodSignature, tuple[int, Task | None]] = {}
        #: Class and node name to the node's generation, the end of the answer in Unix seconds, and the answer.
        self._held: dict[tuple[TaskClass, str], tuple[int, float, _Said]] = {}
        self._held_scores: dict[tuple[TaskClass, str], tuple[int, float, float]] = {}

    def open(self, session: Session) -> None:
        """A session begins, in which the webhook is asked."""
        dispatch = session.dispatch
        self._session = session
        self._is_open = True
        self.in_the_way = False
        deciding = dispatch.entries("best_node")
        # Another plugin that has the last word, or a switch, would leave nobody to ask at the end.
        self._may_judge = any(name == self._name for name, _ in dispatch.entries("predicate_domain"))
        self._lazy = bool(deciding) and deciding[0][0] == self._name
        scoring = any(name == self._name for name, _ in dispatch.entries("batch_node_order"))
        self._scores_late = self._lazy and scoring and self._most_scored > 0
        self._known.clear()
        self._unsaid.clear()
        self._tasks.clear()
        if session.changed.everything or len(self._held) + len(self._held_scores) > _MOST_KEPT:
            self._held.clear()
            self._held_scores.clear()

    def close(self) -> None:
        """The session is over: what was said stays readable, nobody is asked any more."""
        self._is_open = False

    # --- which pods -------------------------------------------------------------------------------------------------

    def interested(self, cls: TaskClass) -> bool:
        """Whether the webhook wants to know about pods of the class."""
        managed = self._managed
        return not managed or not managed.isdisjoint(cls.requests) or not managed.isdisjoint(cls.limits)

    def _task(self, signature: PodSignature) -> Task | None:
        """The pod that is being placed."""
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

    # --- predicate --------------------------------------------------------------------------------------------------

    def judge(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        """Reject what the webhook refuses of the entries nobody else rejected.

        A choice among several nodes is left to `best`, unless somebody else makes it: then only what was said in
        this session about nodes as they still are is rejected here.
        """
        if not self.judges or not self.interested(signature.cls):
            return
        left = rows.rows[result.ok]
        task = self._task(signature)
        if task is None or not len(left):
            return
        answers, rest = self._answers(signature, task, left, result)
        refused: dict[_Said, list[int]] = {}
        for row, answer in answers.items():
            if answer.code is not Code.SUCCESS:
                refused.setdefault(answer, []).append(row)
        for answer, those in sorted(refused.items()):
            result.reject(np.isin(rows.rows, those) & result.ok, answer.code, answer.reason)
        if rest.code is not Code.SUCCESS:
            others = ~np.isin(rows.rows, list(answers))
            result.reject(others & result.ok, rest.code, rest.reason)

    def _answers(
        self, signature: PodSignature, task: Task, left: Rows, result: FilterResult
    ) -> tuple[dict[int, _Said], _Said]:
        """What is said of some of the rows, and of all others."""
        if not self._is_open:
            return self._said(signature, task), self._unsaid.get(_key(signature, task), _YES)
        if self._lazy and len(left) > 1 and not isinstance(result, Diagnosis):
            return self._said(signature, task), _YES
        silence = self._silence(signature, task)
        if silence is None:
            return dict(zip(left.tolist(), self._ask(signature, task, left.tolist()), strict=True)), _YES
        if self._hold:
            found = ((row, self._recall(signature, task, self._session.nodes.nodes[row])) for row in left.tolist())
            return {row: said for row, said in found if said is not None}, silence
        return self._said(signature, task), silence

    def best(self, signature: PodSignature, rows: Rows, scores: Scores) -> int | None:
        """The row with the highest score that the webhook lets the pod have, -1 for none; None: it has no say.

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
            silence = self._silence(signature, task)
            if silence is not None:
                return self._best_known(signature, task, ordered[begin:], silence)
            some = ordered[begin : begin + width]
            for row, answer in zip(some, self._ask(signature, task, some), strict=True):
                if answer.code is Code.SUCCESS:
                    return int(row)
            begin, width = begin + width, width * 2
        return -1

    def _best_known(self, signature: PodSignature, task: Task, ordered: Sequence[int], silence: _Said) -> int:
        """The first row that passes by what is known, -1 for none; `silence` holds for what is not."""
        if silence is not _YES and not self._hold:
            return -1  # of these nothing is known: they were not asked about
        nodes = self._session.nodes.nodes
        passing = (row for row in ordered if (self._recall(signature, task, nodes[row]) or silence) == _YES)
        return next(passing, -1)

    # --- what is known ----------------------------------------------------------------------------------------------

    def _said(self, signature: PodSignature, task: Task) -> dict[int, _Said]:
        """By row: what holds of what was said in this session, or, when it is over, all of it."""
        nodes = self._session.nodes
        found: dict[int, _Said] = {}
        for name, (uid, stamp, said) in self._known.get(_key(signature, task), {}).items():
            node = nodes.by_name.get(name)
            if node is not None and (not self._is_open or (uid == task.uid and nodes.stamps[node.row] == stamp)):
                found[node.row] = said
        return found

    def _recall(self, signature: PodSignature, task: Task, node: Node) -> _Said | None:
        """What was said about the pod on the node as both still are."""
        known = self._known.get(_key(signature, task), {}).get(node.name)
        if known is not None and known[0] == task.uid and known[1] == self._session.nodes.stamps[node.row]:
            return known[2]
        held = self._held.get((signature.cls, node.name)) if self._hold else None
        if held is not None and held[0] == node.generation and self._session.now < held[1]:
            return held[2]
        return None

    def _silence(self, signature: PodSignature, task: Task) -> _Said | None:
        """What counts for every node while the webhook is not asked; None when it is."""
        failure = self._client.silence(self._single.verb if self._batch is None else self._batch.verb)
        if failure is None:
            return None
        said = self._meaning(failure)
        if said is not _YES:
            self.in_the_way = True
            self._unsaid[_key(signature, task)] = said
        return said

    def _meaning(self, failure: CallFailure) -> _Said:
        return _YES if self._ignorable else _Said(Code.ERROR, failure.message)

    # --- asking -----------------------------------------------------------------------------------------------------

    def _ask(self, signature: PodSignature, task: Task, rows: Sequence[int]) -> list[_Said]:
        """What the webhook says about the pod on each row."""
        table = self._session.nodes
        nodes = [table.nodes[row] for row in rows]
        found: dict[str, _Said] = {}
        unknown: list[Node] = []
        for node in nodes:
            recalled = self._recall(signature, task, node)
            if recalled is None:
                unknown.append(node)
            else:
                found[node.name] = recalled
        for node, answer in zip(unknown, self._send(task, unknown) if unknown else (), strict=True):
            found[node.name] = self._meaning(answer) if isinstance(answer, CallFailure) else answer
            if self._hold and not isinstance(answer, CallFailure):
                self._held[signature.cls, node.name] = node.generation, self._session.now + self._hold, answer
        known = self._known.setdefault(_key(signature, task), {})
        known.update({node.name: (task.uid, int(table.stamps[node.row]), found[node.name]) for node in nodes})
        answers = [found[node.name] for node in nodes]
        self.in_the_way = self.in_the_way or any(said != _YES for said in answers)
        return answers

    def _send(self, task: Task, nodes: Sequence[Node]) -> list[_Said | CallFailure]:
        objects, batch = self._objects, self._batch
        if batch is None:
            answers = self._client.ask(self._single, len(nodes), lambda: objects.node_bodies(task, nodes))
            return [each if isinstance(each, CallFailure) else understood(each) for each in answers]
        (answer,) = self._client.ask(batch, 1, lambda: [objects.nodes_body(task, nodes)])
        if isinstance(answer, CallFailure):
            return [answer] * len(nodes)
        results = answer.results or {}
        missing = CallFailure("answer", f"the answer to {batch.verb} has nothing about the node in results")
        return [understood(results[node.name]) if node.name in results else missing for node in nodes]

    # --- scores -----------------------------------------------------------------------------------------------------

    def scores(self, signature: PodSignature, rows: NodeView) -> Scores | None:
        """What the webhook adds to the scores of nodes: float64 [k]; None when it says nothing, or later (`best`).

        Raises ScoringFailed.
        """
        if not self._is_open or self._scores_late or not len(rows) or not self.interested(signature.cls):
            return None
        task = self._task(signature)
        return None if task is None else self._added(signature, task, [rows.nodes[row] for row in rows.rows.tolist()])

    def _added(self, signature: PodSignature, task: Task, nodes: Sequence[Node]) -> Scores | None:
        """The webhook's scores of the nodes: float64 [nodes]; None when it has none and need not have any."""
        now, cls = self._session.now, signature.cls
        found: dict[str, float] = {}
        for node in nodes if self._hold else ():
            held = self._held_scores.get((cls, node.name))
            if held is not None and held[0] == node.generation and now < held[1]:
                found[node.name] = held[2]
        # Hypothetical rows may name a node more than once.
        unknown = list({node.name: node for node in nodes if node.name not in found}.values())
        if unknown:
            (answer,) = self._client.ask(self._prioritize, 1, lambda: [self._objects.nodes_body(task, unknown)])
            if isinstance(answer, CallFailure):
                if self._ignorable:
                    return None
                self.in_the_way = True
                raise ScoringFailed(answer.message)
            if answer.error_message or answer.node_score is None:
                self.in_the_way = True
                text = answer.error_message or "nodeScore: expected a map of node names to numbers, got null"
                raise ScoringFailed(wire.readable(text))
            for node in unknown:
                score = found[node.name] = answer.node_score.get(node.name, 0.0)
                if self._hold:
                    self._held_scores[cls, node.name] = node.generation, now + self._hold, score
        return np.array([found[node.name] for node in nodes])


def _key(signature: PodSignature, task: Task) -> tuple[str, int]:
    return task.job.key if task.job is not None else "", signature.cls.id
