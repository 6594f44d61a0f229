"""What users write under `arguments:` (plugins reference §16)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from capcard_sched.framework.api.problems import shown_text
from capcard_sched.model.timestamps import DurationError, format_duration, parse_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.framework.api.arguments import ArgumentReader

_PREFIX: Final = "extender."
URL_KEY: Final = f"{_PREFIX}urlPrefix"
DEFAULT_TIMEOUT: Final = "1s"
DEFAULT_SESSION_TIMEOUT: Final = "10s"
DEFAULT_BREAKER_PERIOD: Final = "30s"
DEFAULT_RETRY_PERIOD: Final = "10s"

_URL: Final = re.compile(r"https?://(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::(\d{1,5}))?(?:/[^\s?#]*)?")
#: Key of a duration to what stands in for one that cannot be read, and whether 0 is one of them.
_DURATIONS: Final = {
    "httpTimeout": (DEFAULT_TIMEOUT, False),
    "sessionTimeout": (DEFAULT_SESSION_TIMEOUT, False),
    "breakerPeriod": (DEFAULT_BREAKER_PERIOD, False),
    "retryPeriod": (DEFAULT_RETRY_PERIOD, False),
    "cachePeriod": ("0s", True),
}


class ExtenderArguments(msgspec.Struct, frozen=True):
    """Arguments as users write them. A verb that is empty is not asked."""

    #: What stands before every verb: `http://host:port/path`; slashes at its end do not matter.
    url_prefix: str = msgspec.field(name=URL_KEY, default="")
    #: How long one call may take.
    http_timeout: str = msgspec.field(name=f"{_PREFIX}httpTimeout", default=DEFAULT_TIMEOUT)
    #: Told of the cluster when a session opens. Of this verb and the others: one that is empty is not asked.
    session_open_verb: str = msgspec.field(name=f"{_PREFIX}onSessionOpenVerb", default="")
    #: Told when a session is over.
    session_close_verb: str = msgspec.field(name=f"{_PREFIX}onSessionCloseVerb", default="")
    #: Asked whether a pod may go to a node.
    predicate_verb: str = msgspec.field(name=f"{_PREFIX}predicateVerb", default="")
    #: Ours: `predicateVerb` for several nodes in one call, instead of it.
    predicate_batch_verb: str = msgspec.field(name=f"{_PREFIX}predicateBatchVerb", default="")
    #: Asked how good nodes are for a pod.
    prioritize_verb: str = msgspec.field(name=f"{_PREFIX}prioritizeVerb", default="")
    #: Asked who of a queue may be evicted for a pod of the same queue.
    preemptable_verb: str = msgspec.field(name=f"{_PREFIX}preemptableVerb", default="")
    #: Asked who may be evicted for a pod of another queue.
    reclaimable_verb: str = msgspec.field(name=f"{_PREFIX}reclaimableVerb", default="")
    #: Asked whether a queue gets nothing more in this session.
    queue_overused_verb: str = msgspec.field(name=f"{_PREFIX}queueOverusedVerb", default="")
    #: Asked whether a job may be admitted.
    job_enqueueable_verb: str = msgspec.field(name=f"{_PREFIX}jobEnqueueableVerb", default="")
    #: Told that a job was admitted.
    job_enqueued_verb: str = msgspec.field(name=f"{_PREFIX}jobEnqueuedVerb", default="")
    #: Asked whether what is placed of a job may start.
    job_ready_verb: str = msgspec.field(name=f"{_PREFIX}jobReadyVerb", default="")
    #: Told that a pod got room; may object.
    allocate_verb: str = msgspec.field(name=f"{_PREFIX}allocateFuncVerb", default="")
    #: Told that a pod is about to lose it.
    deallocate_verb: str = msgspec.field(name=f"{_PREFIX}deallocateFuncVerb", default="")
    #: What a call that fails means: true, go on without the webhook; false, its answer is no.
    ignorable: bool = msgspec.field(name=f"{_PREFIX}ignorable", default=False)
    #: The webhook is asked about pods of which a container names one of these in requests or limits; all when empty.
    managed_resources: tuple[str, ...] = msgspec.field(name=f"{_PREFIX}managedResources", default=())
    #: Ours: how long a session may wait for the webhook altogether; what it has not said by then counts as failed.
    session_timeout: str = msgspec.field(name=f"{_PREFIX}sessionTimeout", default=DEFAULT_SESSION_TIMEOUT)
    #: Ours: calls that may be under way at once, each on a connection that is kept.
    connections: Annotated[int, msgspec.Meta(ge=1, le=256)] = msgspec.field(name=f"{_PREFIX}connections", default=16)
    #: Ours: how many nodes are asked about first, best score first; when none of them will do, twice as many, and on.
    predicate_nodes: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(name=f"{_PREFIX}predicateNodes", default=4)
    #: Ours: how many nodes get a score of the webhook, the best by the scores of all others; 0 is all of them.
    prioritize_nodes: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name=f"{_PREFIX}prioritizeNodes", default=0)
    #: Ours: after so many failures in a row the webhook is left alone; 0 is never.
    breaker_failures: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name=f"{_PREFIX}breakerFailures", default=5)
    #: Ours: for how long it is left alone.
    breaker_period: str = msgspec.field(name=f"{_PREFIX}breakerPeriod", default=DEFAULT_BREAKER_PERIOD)
    #: Ours: how soon there is another session when the webhook stood in the way and nothing else changes.
    retry_period: str = msgspec.field(name=f"{_PREFIX}retryPeriod", default=DEFAULT_RETRY_PERIOD)
    #: Ours: how long answers about a template on a node hold as long as the node's facts do; 0s asks every time.
    cache_period: str = msgspec.field(name=f"{_PREFIX}cachePeriod", default="0s")

    def seconds(self, key: str) -> float:
        """A duration by its key without prefix, such as `httpTimeout`; the default when it cannot be read."""
        default, zero = _DURATIONS[key]
        written = next(
            getattr(self, field.name) for field in msgspec.structs.fields(self) if field.encode_name == _PREFIX + key
        )
        found = _duration(written, zero=zero)
        return parse_duration(default) if found is None else found

    @property
    def verbs(self) -> tuple[str, ...]:
        """The verbs that are asked."""
        fields = msgspec.structs.fields(self)
        written = (getattr(self, field.name) for field in fields if field.encode_name.endswith("Verb"))
        return tuple(verb for verb in written if verb)


def _duration(text: str, *, zero: bool) -> float | None:
    """Seconds, None when it is no duration or too short to be one."""
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
    """Arguments out of a scheduler-conf; what is wrong with them goes to `problems`."""
    arguments = problems.decode(ExtenderArguments, raw)
    assert isinstance(arguments, ExtenderArguments)
    for key, (default, zero) in _DURATIONS.items():
        written = raw.get(_PREFIX + key)
        if isinstance(written, str) and _duration(written, zero=zero) is None:
            problems.warning(
                _PREFIX + key,
                f'"{shown_text(written)}" is no duration{"" if zero else " above 0"}; '
                f"{format_duration(parse_duration(default))} is used",
                accepted="a duration such as 500ms, 1s or 1m30s",
            )
    if arguments.verbs and not is_url(arguments.url_prefix):
        problems.warning(
            URL_KEY,
            f'"{shown_text(arguments.url_prefix)}" is no URL that verbs can be appended to; '
            f"every call fails, and is answered as {_PREFIX}ignorable says",
            accepted="http:// or https://, a host and perhaps a path, such as http://extender.example:8080/v1",
        )
    if not arguments.verbs:
        problems.warning(URL_KEY, "no verb is given; the webhook is never asked")
    return arguments
