"""The extender plugin: maps its hooks to calls of the webhook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from capcard_sched.framework.api.node_hooks import OTHER_NODES, filter, score
from capcard_sched.framework.api.plugin import OutsideError, Plugin, Sample
from capcard_sched.model.reasons import EXTENDER_REJECTED
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import Vote
from capcard_sched_extender import wire
from capcard_sched_extender.nodes import NodeCalls
from capcard_sched_extender.objects import ExtenderArguments, Objects, is_url, parse, task_body, victims_body
from capcard_sched_extender.port import CallFailure, NoWebhook, WebhookSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.api.node_view import FilterResult, NodeView, PodSignature, Rows, Scores
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched_extender.port import WebhookPort, WebhookVerb

Response = TypeVar("Response")

_CONSEQUENCES: Final = {
    True: "decisions are made without it (extender.ignorable is true)",
    False: "it counts as rejecting (extender.ignorable is false)",
}


class EventRefused(OutsideError):  # noqa: N818 - not an error of this program
    """The webhook rejected a placement, or the notification failed."""


class Extender(Plugin):
    """Calls a webhook to filter and score nodes, select victims, and admit jobs and queues.

    A hook is called only if its verb is configured. `extender.ignorable` decides what a failed call means.
    """

    name = "extender"
    Arguments = ExtenderArguments
    arguments: ExtenderArguments

    def setup(self) -> None:
        given = self.arguments
        self._ignorable = given.ignorable
        self._retry = given.seconds("retryPeriod")
        self._settings = WebhookSettings(
            given.url_prefix if is_url(given.url_prefix) else "",
            timeout=given.seconds("httpTimeout"),
            budget=given.seconds("sessionTimeout"),
            connections=given.connections,
            breaker_failures=given.breaker_failures,
            breaker_period=given.seconds("breakerPeriod"),
            consequence=_CONSEQUENCES[given.ignorable],
        )
        self._connected = False
        self._client: WebhookPort = NoWebhook()
        self._objects = Objects()
        self._nodes = NodeCalls(self.name, given, self._client, self._objects)
        self._opening = wire.notification(given.session_open_verb)
        self._closing = wire.notification(given.session_close_verb)
        self._preemptable = wire.verb(given.preemptable_verb, wire.VictimsResponse)
        self._reclaimable = wire.verb(given.reclaimable_verb, wire.VictimsResponse)
        self._enqueueable = wire.verb(given.job_enqueueable_verb, wire.VoteResponse)
        self._enqueued = wire.notification(given.job_enqueued_verb)
        self._ready = wire.verb(given.job_ready_verb, wire.ReadyResponse)
        self._overused = wire.verb(given.queue_overused_verb, wire.OverusedResponse)
        self._allocate = wire.verb(given.allocate_verb, wire.EventResponse, repeatable=False)
        self._deallocate = wire.verb(given.deallocate_verb, wire.EventResponse, repeatable=False)
        #: Whether the webhook takes part: False while no session is open, and in one whose opening it rejected.
        self._takes_part = False
        #: The same for the last session, for explanations after it.
        self._took_part = False
        self._blocked = False
        self._wakeup: float | None = None
        judges, prioritizes = self._nodes.judges, bool(given.prioritize_verb)
        for hook, wanted in (
            ("preemptable", given.preemptable_verb),
            ("reclaimable", given.reclaimable_verb),
            ("job_enqueueable", given.job_enqueueable_verb),
            ("job_enqueued", given.job_enqueued_verb),
            ("job_ready", given.job_ready_verb),
            ("overused", given.queue_overused_verb),
            ("on_allocate", given.allocate_verb),
            ("on_deallocate", given.deallocate_verb),
            ("filter_by_webhook", judges),
            ("best_node", judges or (prioritizes and given.prioritize_nodes)),
            ("score_by_webhook", prioritizes),
            ("signature", judges or prioritizes),
        ):
            if not wanted:
                setattr(self, hook, None)  # the hook is not dispatched

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> ExtenderArguments:
        return parse(raw, problems)

    def open(self, session: Session) -> None:
        if not self._connected:
            self._connected = True
            if session.calls_webhooks:
                from capcard_sched_extender.client import WebhookClient  # not before: a check of a conf sends nothing

                self._client = self._nodes.client = WebhookClient(self._settings)
        self._client.begin()
        self._objects.open(session)
        self._nodes.open(session)
        self._blocked = False
        self._takes_part = True
        if self.arguments.session_open_verb:
            response = self._call(self._opening, self._objects.session_body)
            if isinstance(response, CallFailure) and not self._ignorable:
                self._takes_part = False
                self._blocked = True
                self._nodes.close()
        self._took_part = self._takes_part

    def close(self, session: Session) -> None:
        if self.arguments.session_close_verb:
            self._call(self._closing, lambda: b"{}")
        self._nodes.close()
        self._takes_part = False
        blocked = self._blocked or self._nodes.blocked
        self._wakeup = session.now + self._retry if blocked else None

    def next_wakeup(self) -> float | None:
        return self._wakeup

    def metrics(self) -> Iterable[Sample]:
        yield Sample("extender_breaker_state", {}, float(self._client.breaker_state))
        for name, count in sorted(self._client.counts.items()):
            yield Sample("extender_calls_total", {"verb": name}, float(count.calls))
            yield Sample("extender_seconds_total", {"verb": name}, count.seconds)
            for kind, failures in sorted(count.failures.items()):
                yield Sample("extender_failures_total", {"verb": name, "reason": kind}, float(failures))

    def _call(self, verb: WebhookVerb[Response], write: Callable[[], bytes]) -> Response | CallFailure:
        (response,) = self._client.call(verb, 1, lambda: [write()])
        return response

    def job_ready(self, job: Job) -> bool:
        if not self._takes_part:
            return True
        response = self._call(self._ready, lambda: self._objects.job_body(job))
        # Not ignorable and no response means not ready, unlike in Volcano.
        ready = self._ignorable if isinstance(response, CallFailure) else response.status
        self._blocked = self._blocked or not ready
        return ready

    def job_enqueueable(self, job: Job) -> Vote | Refusal:
        if not self._takes_part:
            return Vote.ABSTAIN
        response = self._call(self._enqueueable, lambda: self._objects.job_body(job))
        if isinstance(response, CallFailure):
            if self._ignorable:
                return Vote.PERMIT
            detail = response.message
        elif response.status != Vote.REJECT:
            return Vote(response.status)
        else:
            detail = wire.readable(response.message) if response.message else ""
        self._blocked = True
        row = EXTENDER_REJECTED
        message = row.render(detail=f": {detail}" if detail else "")
        return Refusal("job_enqueueable", self.name, row.code, message, queue=job.queue, event=True, type=row.type)

    def job_enqueued(self, job: Job) -> None:
        if self._takes_part:
            self._call(self._enqueued, lambda: self._objects.job_body(job))

    def allocation_version(self, queue: Queue) -> None:
        """None: a webhook may change its decisions at any time, so every waiting job is attempted."""

    def overused(self, queue: Queue) -> bool:
        if not self._takes_part:
            return False
        response = self._call(self._overused, lambda: self._objects.queue_body(queue))
        overused = not self._ignorable if isinstance(response, CallFailure) else response.overused
        self._blocked = self._blocked or overused
        return overused

    def preemptable(self, task: Task, candidates: Sequence[Task]) -> list[Task] | None:
        return self._victims(self._preemptable, task, candidates)

    def reclaimable(self, task: Task, candidates: Sequence[Task]) -> list[Task] | None:
        return self._victims(self._reclaimable, task, candidates)

    def _victims(
        self, verb: WebhookVerb[wire.VictimsResponse], task: Task, candidates: Sequence[Task]
    ) -> list[Task] | None:
        if not self._takes_part or not self._nodes.interested(task.cls):
            return None
        response = self._call(verb, lambda: victims_body(task, candidates))
        if isinstance(response, CallFailure):
            self._blocked = True
            return []  # ignorable or not: without a response nothing is evicted
        if response.status == Vote.ABSTAIN:
            return None
        named = {victim.uid for victim in response.victims or ()}
        return [each for each in candidates if each.uid in named]

    def signature(self, queue: Queue, task: Task) -> str | None:
        """The job of the pods that are sent."""
        if not self._took_part or task.job is None or not self._nodes.interested(task.cls):
            return None
        return task.job.key

    def _is_sent(self, signature: PodSignature) -> bool:
        return self._took_part and self._nodes.interested(signature.cls)

    @filter(reads=OTHER_NODES, when=_is_sent)  # every pod is sent: the result of one does not hold for the next
    def filter_by_webhook(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        self._nodes.judge(signature, rows, result)

    @score(reads=OTHER_NODES, when=_is_sent)
    def score_by_webhook(self, signature: PodSignature, candidates: NodeView) -> Scores | None:
        return self._nodes.scores(signature, candidates)

    def best_node(self, signature: PodSignature, rows: Rows, scores: Scores) -> int | None:
        return self._nodes.best(signature, rows, scores)

    def on_allocate(self, placement: Placement) -> None:
        self._notify(self._allocate, placement)

    def on_deallocate(self, placement: Placement) -> None:
        self._notify(self._deallocate, placement)

    def _notify(self, verb: WebhookVerb[wire.EventResponse], placement: Placement) -> None:
        """Notify of each pod concurrently. Raises EventRefused when the webhook rejects one of them."""
        if not self._takes_part or not self._nodes.interested(placement.cls):
            return
        tasks = placement.tasks
        for response in self._client.call(verb, len(tasks), lambda: [task_body(task) for task in tasks]):
            if isinstance(response, CallFailure):
                message = "" if self._ignorable else response.message
            else:
                message = wire.readable(response.error_message) if response.error_message else ""
            if message:
                self._blocked = True
                raise EventRefused(message)
