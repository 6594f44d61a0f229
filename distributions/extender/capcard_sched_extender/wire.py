"""Requests and responses: JSON with the field names of Volcano's extenders (docs/extender.md).

Amounts are integers in base units: thousandths of a core, bytes, pods in whole numbers, thousandths of any other
resource. Times are Unix seconds. Unknown fields of responses are ignored.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec

from capcard_sched.model.decode_errors import field_problem, json_problem
from capcard_sched_extender.port import WebhookVerb

if TYPE_CHECKING:
    from collections.abc import Callable

Response = TypeVar("Response", bound=msgspec.Struct)


class _Sent(msgspec.Struct, rename="pascal", frozen=True):
    """Base of the objects in requests: capitalized field names."""


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
    #: Its requests; `InitResreq` is the same, init containers included.
    resreq: Resource
    init_resreq: Resource
    node_name: str
    #: Pending, Allocated, Pipelined, Binding, Bound, Running, Releasing, Succeeded, Failed or Unknown.
    status: str
    priority: int
    preemptable: bool
    best_effort: bool
    labels: dict[str, str]
    #: The annotations that the scheduler reads.
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
    """A node with the decisions of the session so far applied."""

    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    taints: list[WireTaint]
    unschedulable: bool
    allocatable: Resource
    capability: Resource
    #: Amounts of its pods, terminating ones included.
    used: Resource
    idle: Resource
    #: The terminating part of `Used`, and the part of it that is nominated.
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
    """`allocate` and `deallocate`: the pod that is placed, or removed."""

    task: TaskInfo


class PredicateRequest(msgspec.Struct, frozen=True):
    """Filters one node for a pod."""

    task: TaskInfo
    node: NodeInfo


class NodesRequest(msgspec.Struct, frozen=True):
    """`prioritize` and the predicate for several nodes."""

    task: TaskInfo
    nodes: list[NodeInfo]


class VictimsRequest(msgspec.Struct, frozen=True):
    """`preemptable` and `reclaimable`: selects victims among the evictees for the evictor."""

    evictor: TaskInfo
    evictees: list[TaskInfo]


class JobRequest(msgspec.Struct, frozen=True):
    """`jobEnqueueable`, `jobEnqueued` and `jobReady`."""

    job: JobInfo


class QueueRequest(msgspec.Struct, frozen=True):
    """`queueOverused`."""

    queue: QueueInfo


#: Status codes of kube-scheduler: 0 Success to 5 Skip.
StatusCode = Annotated[int, msgspec.Meta(ge=0, le=5)]
Vote = Annotated[int, msgspec.Meta(ge=-1, le=1)]


class PredicateResponse(msgspec.Struct, frozen=True):
    """An empty `status` passes, whatever the code; code 0 with a status is an error."""

    status: str = ""
    code: StatusCode = 0


class PredicateBatchResponse(msgspec.Struct, frozen=True):
    """A result for each of the nodes, by name."""

    results: dict[str, PredicateResponse] | None = None


class PrioritizeResponse(
    msgspec.Struct, frozen=True, rename={"node_score": "nodeScore", "error_message": "errorMessage"}
):
    """Scores by node name; missing nodes get 0. A missing map, or a message, is a failure."""

    node_score: dict[str, float] | None = None
    error_message: str = ""


class Victim(msgspec.Struct, frozen=True, rename={"uid": "UID"}):
    """One of the evictees; only its `UID` is read."""

    uid: str


class VictimsResponse(msgspec.Struct, frozen=True):
    """`status` 0 abstains; with any other only `victims` may be evicted."""

    status: Vote = 0
    victims: list[Victim] | None = None


class VoteResponse(msgspec.Struct, frozen=True):
    """1 admits, 0 abstains, -1 rejects, with an optional `message` for the event."""

    status: Vote = 0
    message: str = ""


class OverusedResponse(msgspec.Struct, frozen=True):
    """Whether the queue gets nothing more in this session."""

    overused: bool = False


class ReadyResponse(msgspec.Struct, frozen=True):
    """Whether the job may be started."""

    status: bool = False


class EventResponse(msgspec.Struct, frozen=True, rename={"error_message": "errorMessage"}):
    """A message rejects the placement or removal."""

    error_message: str = ""


#: Verb (its argument without prefix) to request and response; None: the response body is ignored.
FORMS: Final[dict[str, tuple[type[msgspec.Struct], type[msgspec.Struct] | None]]] = {
    "onSessionOpenVerb": (SessionOpenRequest, None),
    "onSessionCloseVerb": (SessionCloseRequest, None),
    "predicateVerb": (PredicateRequest, PredicateResponse),
    "predicateBatchVerb": (NodesRequest, PredicateBatchResponse),
    "prioritizeVerb": (NodesRequest, PrioritizeResponse),
    "preemptableVerb": (VictimsRequest, VictimsResponse),
    "reclaimableVerb": (VictimsRequest, VictimsResponse),
    "jobEnqueueableVerb": (JobRequest, VoteResponse),
    "jobEnqueuedVerb": (JobRequest, None),
    "jobReadyVerb": (JobRequest, ReadyResponse),
    "queueOverusedVerb": (QueueRequest, OverusedResponse),
    "allocateFuncVerb": (TaskRequest, EventResponse),
    "deallocateFuncVerb": (TaskRequest, EventResponse),
}

_LONGEST_TEXT: Final = 512
_ACCEPTED: Final = {
    PredicateResponse: '{"status": string, "code": integer from 0 to 5}',
    PredicateBatchResponse: '{"results": map of node names to {"status": string, "code": integer from 0 to 5}}',
    PrioritizeResponse: '{"nodeScore": map of node names to finite numbers, "errorMessage": string}',
    VictimsResponse: '{"status": -1, 0 or 1, "victims": list of {"UID": string} or null}',
    VoteResponse: '{"status": -1, 0 or 1, "message": string}',
    OverusedResponse: '{"overused": true or false}',
    ReadyResponse: '{"status": true or false}',
    EventResponse: '{"errorMessage": string}',
}


def verb(name: str, response: type[Response], check: Callable[[Response], None] | None = None, *,
             repeatable: bool = True) -> WebhookVerb[Response]:  # fmt: skip
    """A verb whose responses are decoded as `response`; `check` raises ValueError for further problems."""
    decoder, accepted = msgspec.json.Decoder(response), _ACCEPTED[response]

    def decode(data: bytes) -> Response:
        try:
            found = decoder.decode(data)
            if check is not None:
                check(found)
        except msgspec.ValidationError as error:
            problem = json_problem(error, data)
            raise ValueError(f"{problem.field or 'the body'}: {problem.message}; accepted: {accepted}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"it is not JSON: {field_problem(error)}; accepted: {accepted}") from None
        except RecursionError:
            raise ValueError(f"it is nested too deeply; accepted: {accepted}") from None
        return found

    return WebhookVerb(name, decode, repeatable)


def notification(name: str) -> WebhookVerb[None]:
    """A verb whose response body is ignored."""
    return WebhookVerb(name, lambda _: None, repeatable=False)


def readable(text: str) -> str:
    """A message of a response for events: one printable line of bounded length, never empty."""
    line = " ".join(text[: 2 * _LONGEST_TEXT].split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line) or "no reason given"
    return line if len(line) <= _LONGEST_TEXT else f"{line[: _LONGEST_TEXT - 3]}..."


def check_scores(response: PrioritizeResponse) -> None:
    """Raise ValueError unless the scores can be added up."""
    for name, score in (response.node_score or {}).items():
        if not math.isfinite(score):
            raise ValueError(
                f"nodeScore.{name}: {score} is not a finite number; accepted: {_ACCEPTED[PrioritizeResponse]}"
            )


def check_results(response: PredicateBatchResponse) -> None:
    """Raise ValueError unless there are results."""
    if response.results is None:
        raise ValueError(f"results: expected a map, got null; accepted: {_ACCEPTED[PredicateBatchResponse]}")


def schema() -> dict[str, Any]:
    """`verbs` names the request and the response of each verb, None if the body is ignored; `$defs` holds them."""
    types = {form for forms in FORMS.values() for form in forms if form is not None}
    ordered = sorted(types, key=lambda form: form.__name__)
    _, definitions = msgspec.json.schema_components(ordered, ref_template="#/$defs/{name}")
    verbs = {
        f"extender.{verb}": {"request": sent.__name__, "response": None if read is None else read.__name__}
        for verb, (sent, read) in FORMS.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "verbs": verbs,
        "$defs": {name: definitions[name] for name in sorted(definitions)},
    }


def schema_text() -> str:
    """The schema as JSON with a line for each verb and each field."""
    found = schema()
    verbs = _lines(found["verbs"], "    ")
    definitions = []
    for name, definition in found["$defs"].items():
        fields = _lines(definition.pop("properties"), "      ")
        rest = json.dumps({key: value for key, value in definition.items() if key != "title" and value != []})
        start = f'    {json.dumps(name)}: {rest[:-1]}, "properties": {{'
        definitions.append(f"{start}\n{fields}\n    }}}}" if fields else f"{start}}}}}")
    parts = ["{", f'  "$schema": {json.dumps(found["$schema"])},', '  "verbs": {', verbs, "  },", '  "$defs": {']
    return "\n".join([*parts, ",\n".join(definitions), "  }", "}"])


def _lines(entries: dict[str, Any], indent: str) -> str:
    return ",\n".join(f"{indent}{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
