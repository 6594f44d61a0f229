"""What is sent and what is understood: JSON with the field names that extenders know (docs/extender.md).

Amounts are integers in base units: thousandths of a core, bytes, pods in whole numbers, thousandths of any other
resource. Times are Unix seconds. Answers may hold more than is read here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec

from capcard_sched.plugins.extender.client import Question

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = TypeVar("Answer", bound=msgspec.Struct)


class _Sent(msgspec.Struct, rename="pascal", frozen=True):
    """Base of the objects in requests: capitalised field names."""


class Resource(_Sent, frozen=True):
    """Amounts."""

    milli_cpu: int = msgspec.field(name="MilliCPU", default=0)
    memory: int = 0
    #: Everything else by its name, `pods` included.
    scalar_resources: dict[str, int] = {}


class TaskInfo(_Sent, frozen=True):
    """A pod."""

    uid: str = msgspec.field(name="UID")
    #: `UID` of its job.
    job: str
    name: str
    namespace: str
    #: `volcano.sh/task-spec`.
    task_role: str
    #: What it requests, `InitResreq` while it starts: the same here, start included.
    resreq: Resource
    init_resreq: Resource
    node_name: str
    #: Pending, Allocated, Pipelined, Binding, Bound, Running, Releasing, Succeeded, Failed or Unknown.
    status: str
    priority: int
    preemptable: bool
    best_effort: bool
    labels: dict[str, str]
    #: Those that the scheduler itself reads.
    annotations: dict[str, str]
    node_selector: dict[str, str]
    creation_timestamp: float


class PlacedTask(_Sent, frozen=True):
    """A pod on a node, in short."""

    uid: str = msgspec.field(name="UID")
    job: str
    name: str
    namespace: str
    task_role: str
    resreq: Resource
    priority: int


class WireTaint(_Sent, frozen=True):
    """A taint of a node."""

    key: str
    value: str
    effect: str


class NodeInfo(_Sent, frozen=True):
    """A node as it would stand if what the session decided so far were done."""

    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    taints: list[WireTaint]
    unschedulable: bool
    allocatable: Resource
    capability: Resource
    #: What pods there hold, those that are leaving included.
    used: Resource
    idle: Resource
    #: The part of `Used` that is leaving, and what is promised out of it.
    releasing: Resource
    pipelined: Resource
    #: By `UID`.
    tasks: dict[str, PlacedTask]


class JobInfo(_Sent, frozen=True):
    """A PodGroup with its pods."""

    #: `namespace/name` of the PodGroup.
    uid: str = msgspec.field(name="UID")
    #: uid of the PodGroup object.
    pg_uid: str = msgspec.field(name="PgUID")
    name: str
    namespace: str
    queue: str
    priority: int
    min_available: int
    #: Role to minimum.
    task_min_available: dict[str, int]
    #: Pending, Inqueue, Running, Unknown or Completed.
    phase: str
    #: `spec.minResources`; null when unset.
    min_resources: Resource | None
    allocated: Resource
    total_request: Resource
    labels: dict[str, str]
    annotations: dict[str, str]
    creation_timestamp: float
    #: By `UID`.
    tasks: dict[str, TaskInfo]


class QueueInfo(_Sent, frozen=True):
    """A queue; an amount that is null is not set."""

    uid: str = msgspec.field(name="UID")
    name: str
    weight: int
    priority: int
    parent: str
    state: str
    reclaimable: bool
    capability: Resource | None
    deserved: Resource | None
    guarantee: Resource | None
    allocated: Resource
    labels: dict[str, str]
    annotations: dict[str, str]


class NamespaceInfo(_Sent, frozen=True):
    """A namespace."""

    name: str
    labels: dict[str, str]


# --- requests -----------------------------------------------------------------------------------------------------


class SessionOpenRequest(_Sent, frozen=True):
    """The whole cluster, each map by `UID` or name."""

    jobs: dict[str, JobInfo]
    nodes: dict[str, NodeInfo]
    queues: dict[str, QueueInfo]
    namespace_info: dict[str, NamespaceInfo]
    #: The nodes with a label `volcano.sh/revocable-zone`.
    revocable_nodes: dict[str, NodeInfo]
    #: Never filled.
    node_list: list[NodeInfo] = []


class SessionCloseRequest(msgspec.Struct, frozen=True):
    """Nothing."""


class TaskRequest(msgspec.Struct, frozen=True):
    """`allocate` and `deallocate`: the pod that got room, or is about to lose it."""

    task: TaskInfo


class PredicateRequest(msgspec.Struct, frozen=True):
    """May the pod go to the node?"""

    task: TaskInfo
    node: NodeInfo


class NodesRequest(msgspec.Struct, frozen=True):
    """`prioritize` and the predicate for several nodes."""

    task: TaskInfo
    nodes: list[NodeInfo]


class VictimsRequest(msgspec.Struct, frozen=True):
    """`preemptable` and `reclaimable`: which of the evictees may go for the evictor?"""

    evictor: TaskInfo
    evictees: list[TaskInfo]


class JobRequest(msgspec.Struct, frozen=True):
    """`jobEnqueueable`, `jobEnqueued` and `jobReady`."""

    job: JobInfo


class QueueRequest(msgspec.Struct, frozen=True):
    """`queueOverused`."""

    queue: QueueInfo


# --- answers --------------------------------------------------------------------------------------------------------

#: The codes of the plugins reference §0.5.
StatusCode = Annotated[int, msgspec.Meta(ge=0, le=5)]
Vote = Annotated[int, msgspec.Meta(ge=-1, le=1)]


class PredicateAnswer(msgspec.Struct, frozen=True):
    """An empty `status` is yes, whatever the code; code 0 with a status is an error."""

    status: str = ""
    code: StatusCode = 0


class PredicateBatchAnswer(msgspec.Struct, frozen=True):
    """An answer for each of the nodes, by name."""

    results: dict[str, PredicateAnswer] | None = None


class PrioritizeAnswer(
    msgspec.Struct, frozen=True, rename={"node_score": "nodeScore", "error_message": "errorMessage"}
):
    """Scores by name of a node; a node that is not named gets 0. No map, or a message, is a failure."""

    node_score: dict[str, float] | None = None
    error_message: str = ""


class Victim(msgspec.Struct, frozen=True, rename={"uid": "UID"}):
    """One of the evictees; nothing but its `UID` is read."""

    uid: str


class VictimsAnswer(msgspec.Struct, frozen=True):
    """`status` 0 leaves the choice to others; with any other only `victims` may go."""

    status: Vote = 0
    victims: list[Victim] | None = None


class VoteAnswer(msgspec.Struct, frozen=True):
    """1 admits, 0 leaves it to others, -1 refuses, with a `message` if the people waiting should see one."""

    status: Vote = 0
    message: str = ""


class OverusedAnswer(msgspec.Struct, frozen=True):
    """Whether the queue has all it may have."""

    overused: bool = False


class ReadyAnswer(msgspec.Struct, frozen=True):
    """Whether the job may be started."""

    status: bool = False


class EventAnswer(msgspec.Struct, frozen=True, rename={"error_message": "errorMessage"}):
    """A message undoes what the event told of."""

    error_message: str = ""


#: Verb (its argument without prefix) to what is sent and what is understood; None: nothing is read.
FORMS: Final[dict[str, tuple[type[msgspec.Struct], type[msgspec.Struct] | None]]] = {
    "onSessionOpenVerb": (SessionOpenRequest, None),
    "onSessionCloseVerb": (SessionCloseRequest, None),
    "predicateVerb": (PredicateRequest, PredicateAnswer),
    "predicateBatchVerb": (NodesRequest, PredicateBatchAnswer),
    "prioritizeVerb": (NodesRequest, PrioritizeAnswer),
    "preemptableVerb": (VictimsRequest, VictimsAnswer),
    "reclaimableVerb": (VictimsRequest, VictimsAnswer),
    "jobEnqueueableVerb": (JobRequest, VoteAnswer),
    "jobEnqueuedVerb": (JobRequest, None),
    "jobReadyVerb": (JobRequest, ReadyAnswer),
    "queueOverusedVerb": (QueueRequest, OverusedAnswer),
    "allocateFuncVerb": (TaskRequest, EventAnswer),
    "deallocateFuncVerb": (TaskRequest, EventAnswer),
}

_LONGEST_TEXT: Final = 512
_ACCEPTED: Final = {
    PredicateAnswer: '{"status": string, "code": integer from 0 to 5}',
    PredicateBatchAnswer: '{"results": map of node names to {"status": string, "code": integer from 0 to 5}}',
    PrioritizeAnswer: '{"nodeScore": map of node names to finite numbers, "errorMessage": string}',
    VictimsAnswer: '{"status": -1, 0 or 1, "victims": list of {"UID": string} or null}',
    VoteAnswer: '{"status": -1, 0 or 1, "message": string}',
    OverusedAnswer: '{"overused": true or false}',
    ReadyAnswer: '{"status": true or false}',
    EventAnswer: '{"errorMessage": string}',
}


def question(verb: str, answer: type[Answer], check: Callable[[Answer], None] | None = None, *,
             repeatable: bool = True) -> Question[Answer]:  # fmt: skip
    """A question whose answers are read as `answer`; `check` raises ValueError when that is not enough."""
    decoder, accepted = msgspec.json.Decoder(answer), _ACCEPTED[answer]

    def decode(data: bytes) -> Answer:
        try:
            found = decoder.decode(data)
            if check is not None:
                check(found)
        except msgspec.ValidationError as error:
            text, _, place = str(error).partition(" - at ")
            field = place.strip("`").removeprefix("$").lstrip(".") or "the whole"
            raise ValueError(f"{field}: {text.replace('`', '')}; accepted: {accepted}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"it is no JSON: {error}; accepted: {accepted}") from None
        except RecursionError:
            raise ValueError(f"it is nested too deep; accepted: {accepted}") from None
        return found

    return Question(verb, decode, repeatable)


def notice(verb: str) -> Question[None]:
    """A question whose answer does not matter, as long as there is one."""
    return Question(verb, lambda _: None, repeatable=False)


def readable(text: str) -> str:
    """What an answer says to people, on one line and no longer than events are; never empty."""
    line = " ".join(text[: 2 * _LONGEST_TEXT].split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line) or "no reason given"
    return line if len(line) <= _LONGEST_TEXT else f"{line[: _LONGEST_TEXT - 3]}..."


def check_scores(answer: PrioritizeAnswer) -> None:
    """Raise ValueError unless the scores can be added up."""
    for name, score in (answer.node_score or {}).items():
        if not math.isfinite(score):
            raise ValueError(f"nodeScore.{name}: {score} is no finite number; accepted: {_ACCEPTED[PrioritizeAnswer]}")


def check_results(answer: PredicateBatchAnswer) -> None:
    """Raise ValueError unless there are results."""
    if answer.results is None:
        raise ValueError(f"results: expected a map, got null; accepted: {_ACCEPTED[PredicateBatchAnswer]}")
