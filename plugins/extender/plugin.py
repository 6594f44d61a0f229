"""The hooks (plugins reference §16, §28)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from capcard_sched.framework.api.plugin import OutsideError, Plugin, Sample
from capcard_sched.model.reasons import EXTENDER_REJECTED
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import Vote
from capcard_sched.plugins.extender import wire
from capcard_sched.plugins.extender.arguments import ExtenderArguments, is_url, parse
from capcard_sched.plugins.extender.breaker import Breaker
from capcard_sched.plugins.extender.client import CallFailure, WebhookClient
from capcard_sched.plugins.extender.nodes import NodeQuestions
from capcard_sched.plugins.extender.objects import Objects, task_body, victims_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.api.node_view import FilterResult, NodeView, PodSignature, Rows, Scores
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.plugins.extender.client import Question

Answer = TypeVar("Answer")

_CONSEQUENCES: Final = {
    True: "its part in decisions is left out (extender.ignorable is true)",
    False: "its answer counts as no (extender.ignorable is false)",
}


class EventRefused(OutsideError):  # noqa: N818 - it says what happened
    """The webhook does not agree with a placement, or could not be told of it."""


class Extender(Plugin):
    """Asks a webhook: whether a pod may go to a node, how good nodes are, who may be evicted, whether jobs and queues may go on.

    Each part is asked only when its verb is given. What a call that fails means is said by `extender.ignorable`.
    """  # noqa: E501 - docs/plugins.md shows the first line

    name = "extender"
    Arguments = ExtenderArguments
    arguments: ExtenderArguments

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        given = self.arguments
        self._ignorable = given.ignorable
        self._retry = given.seconds("retryPeriod")
        self._client = WebhookClient(
            given.url_prefix if is_url(given.url_prefix) else "",
            timeout=given.seconds("httpTimeout"),
            budget=given.seconds("sessionTimeout"),
            connections=given.connections,
            breaker=Breaker(given.breaker_failures, given.seconds("breakerPeriod")),
            consequence=_CONSEQUENCES[given.ignorable],
        )
        self._objects = Objects()
        self._nodes = NodeQuestions(self.name, given, self._client, self._objects)
        self._opening = wire.notice(given.session_open_verb)
        self._closing = wire.notice(given.session_close_verb)
        self._preemptable = wire.question(given.preemptable_verb, wire.VictimsAnswer)
        self._reclaimable = wire.question(given.reclaimable_verb, wire.VictimsAnswer)
        self._enqueueable = wire.question(given.job_enqueueable_verb, wire.VoteAnswer)
        self._enqueued = wire.notice(given.job_enqueued_verb)
        self._ready = wire.question(given.job_ready_verb, wire.ReadyAnswer)
        self._overused = wire.question(given.queue_overused_verb, wire.OverusedAnswer)
        self._allocate = wire.question(given.allocate_verb, wire.EventAnswer, repeatable=False)
        self._deallocate = wire.question(given.deallocate_verb, wire.EventAnswer, repeatable=False)
        #: False in a session that the webhook did not let begin, and while none is open: it has no part in anything.
        self._takes_part = False
        #: The same, but holds on after the session, for those who ask why a pod waits.
        self._took_part = False
        self._in_the_way = False
        self._due: float | None = None
        judges, prioritizes = self._nodes.judges, bool(given.prioritize_verb)
        for hooks, wanted in (
            (("preemptable",), given.preemptable_verb),
            (("reclaimable",), given.reclaimable_verb),
            (("job_enqueueable",), given.job_enqueueable_verb),
            (("job_enqueued",), given.job_enqueued_verb),
            (("job_ready",), given.job_ready_verb),
            (("overused",), given.queue_overused_verb),
            (("on_allocate",), given.allocate_verb),
            (("on_deallocate",), given.deallocate_verb),
            (("predicate_domain",), judges),
            (("best_node",), judges or (prioritizes and given.prioritize_nodes)),
            (("batch_node_order",), prioritizes),
            (("task_context", "domain_bound", "row_private"), judges or prioritizes),
        ):
            for hook in hooks if not wanted else ():
                setattr(self, hook, None)  # nobody is asked for it, and nothing is slower for it

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> ExtenderArguments:
        return parse(raw, problems)

    # --- session ----------------------------------------------------------------------------------------------------

    def open(self, session: Session) -> None:
        self._client.begin()
        self._objects.open(session)
        self._nodes.open(session)
        self._in_the_way = False
        self._takes_part = True
        if self.arguments.session_open_verb:
            answer = self._ask(self._opening, self._objects.session_body)
            if isinstance(answer, CallFailure) and not self._ignorable:
                self._takes_part = False
                self._in_the_way = True
                self._nodes.close()
        self._took_part = self._takes_part

    def close(self, session: Session) -> None:
        if self.arguments.session_close_verb:
            self._ask(self._closing, lambda: b"{}")
        self._nodes.close()
        self._takes_part = False
        in_the_way = self._in_the_way or self._nodes.in_the_way
        self._due = session.now + self._retry if in_the_way else None

    def next_wakeup(self) -> float | None:
        return self._due

    def metrics(self) -> Iterable[Sample]:
        yield Sample("extender_breaker_state", {}, float(self._client.breaker_state))
        for verb, count in sorted(self._client.counts.items()):
            yield Sample("extender_calls_total", {"verb": verb}, float(count.calls))
            yield Sample("extender_seconds_total", {"verb": verb}, count.seconds)
            for kind, failures in sorted(count.failures.items()):
                yield Sample("extender_failures_total", {"verb": verb, "reason": kind}, float(failures))

    def _ask(self, question: Question[Answer], write: Callable[[], bytes]) -> Answer | CallFailure:
        (answer,) = self._client.ask(question, 1, lambda: [write()])
        return answer

    # --- jobs and queues --------------------------------------------------------------------------------------------

    def job_ready(self, job: Job) -> bool:
        if not self._takes_part:
            return True
        answer = self._ask(self._ready, lambda: self._objects.job_body(job))
        # Not ignorable and no answer is "no" here too, unlike in the reference.
        ready = self._ignorable if isinstance(answer, CallFailure) else answer.status
        self._in_the_way = self._in_the_way or not ready
        return ready

    def job_enqueueable(self, job: Job) -> Vote | Refusal:
        if not self._takes_part:
            return Vote.ABSTAIN
        answer = self._ask(self._enqueueable, lambda: self._objects.job_body(job))
        if isinstance(answer, CallFailure):
            if self._ignorable:
                return Vote.PERMIT
            detail = answer.message
        elif answer.status != Vote.REJECT:
            return Vote(answer.status)
        else:
            detail = wire.readable(answer.message) if answer.message else ""
        self._in_the_way = True
        row = EXTENDER_REJECTED
        message = row.render(detail=f": {detail}" if detail else "")
        return Refusal("job_enqueueable", self.name, row.code, message, queue=job.queue, event=True, type=row.type)

    def job_enqueued(self, job: Job) -> None:
        if self._takes_part:
            self._ask(self._enqueued, lambda: self._objects.job_body(job))

    def overused(self, queue: Queue) -> bool:
        if not self._takes_part:
            return False
        answer = self._ask(self._overused, lambda: self._objects.queue_body(queue))
        overused = not self._ignorable if isinstance(answer, CallFailure) else answer.overused
        self._in_the_way = self._in_the_way or overused
        return overused

    # --- victims ----------------------------------------------------------------------------------------------------

    def preemptable(self, task: Task, candidates: Sequence[Task]) -> list[Task] | None:
        return self._victims(self._preemptable, task, candidates)

    def reclaimable(self, task: Task, candidates: Sequence[Task]) -> list[Task] | None:
        return self._victims(self._reclaimable, task, candidates)

    def _victims(
        self, question: Question[wire.VictimsAnswer], task: Task, candidates: Sequence[Task]
    ) -> list[Task] | None:
        if not self._takes_part or not self._nodes.interested(task.cls):
            return None
        answer = self._ask(question, lambda: victims_body(task, candidates))
        if isinstance(answer, CallFailure):
            self._in_the_way = True
            return []  # whether ignorable or not: nobody is evicted on the word of who did not speak
        if answer.status == Vote.ABSTAIN:
            return None
        named = {victim.uid for victim in answer.victims or ()}
        return [each for each in candidates if each.uid in named]

    # --- nodes ------------------------------------------------------------------------------------------------------

    def task_context(self, task: Task) -> str | None:
        """The job whose pods of the class are meant."""
        if not self._took_part or task.job is None or not self._nodes.interested(task.cls):
            return None
        return task.job.key

    def domain_bound(self, signature: PodSignature) -> bool:
        """Every pod is asked about: what was said of the one before need not hold for the next."""
        return self._took_part and self._nodes.interested(signature.cls)

    def row_private(self, signature: PodSignature) -> bool:
        return self.domain_bound(signature)

    def predicate_domain(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        self._nodes.judge(signature, rows, result)

    def batch_node_order(self, signature: PodSignature, candidates: NodeView) -> Scores | None:
        return self._nodes.scores(signature, candidates)

    def best_node(self, signature: PodSignature, rows: Rows, scores: Scores) -> int | None:
        return self._nodes.best(signature, rows, scores)

    # --- events -----------------------------------------------------------------------------------------------------

    def on_allocate(self, placement: Placement) -> None:
        self._tell(self._allocate, placement)

    def on_deallocate(self, placement: Placement) -> None:
        self._tell(self._deallocate, placement)

    def _tell(self, question: Question[wire.EventAnswer], placement: Placement) -> None:
        """Tell of each pod, side by side. Raises EventRefused when the webhook does not agree with one of them."""
        if not self._takes_part or not self._nodes.interested(placement.cls):
            return
        tasks = placement.tasks
        for answer in self._client.ask(question, len(tasks), lambda: [task_body(task) for task in tasks]):
            if isinstance(answer, CallFailure):
                message = "" if self._ignorable else answer.message
            else:
                message = wire.readable(answer.error_message) if answer.error_message else ""
            if message:
                self._in_the_way = True
                raise EventRefused(message)
