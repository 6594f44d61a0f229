"""Malformed PodGroups."""

from __future__ import annotations

from typing import Any

from capcard_sched.model.quoting import escaped
from tests.malformed.case import BOUND, Case, group, invalid, refused
from tests.malformed.queue_cases import NO_INTEGER, NOT_JSON
from tests.malformed.world import BAD_QUANTITIES, BIG, GPU, WarningEvent, World

REQUEST = "volcano.sh/card.request"


def request(id: str, text: str, detail: str) -> list[Case]:
    """A malformed `card.request`: it blocks a job without pods; the pods of other jobs determine their charge."""
    message = f"Invalid annotation {REQUEST}: {detail}"
    events = WarningEvent("PodGroup", "bad", "InvalidCardRequest", message)
    notes = {REQUEST: text}
    return [
        group(f"request, no pod: {id}", None, events, pods=0, annotations=notes, condition=message),
        group(f"request, a pod: {id}", BOUND, events, annotations=notes),
    ]


def requested(id: str, text: str) -> Case:
    """A well-formed request without pods: the job is admitted."""
    return group(f"request: {id}", None, pods=0, annotations={REQUEST: text}, check=is_admitted)


def is_admitted(world: World) -> bool:
    """The job left phase Pending."""
    return world.h.phases["bad"] == "Inqueue"


def beyond(id: str, text: str, card: str, requested: int, limit: int) -> Case:
    """A request above the quota. Changed figures alone are written at intervals, of which the first has not passed."""
    message = (
        f"Queue <q> has insufficient <{card}> quota: requested <{requested}>, total would be <{requested}>, "
        f"but capability is <{limit}>"
    )
    events = [WarningEvent("PodGroup", "bad", "InsufficientScalarQuota", message)]
    never = f"can never start: needs {requested // 1000}, quota is {limit // 1000} (<{card}> of Queue <q>)"
    events.append(WarningEvent("PodGroup", "bad", "CanNeverStart", f"{never}; nothing is reserved for it"))
    return group(f"request: {id}", None, *events, pods=0, annotations={REQUEST: text}, condition=message)


REQUESTS = [
    *request("a word", "some", f"not JSON: Expecting value at line 1 column 1; {NOT_JSON}"),
    *request("a number in quotes", '{"A":"1"}', f'<A>: "1" {NO_INTEGER}'),
    *request("an empty alternative", '{"A||B":1}', "invalid card name <A||B>: empty alternative"),
    *request("too long", "x" * 300_000, "longer than 262144 characters"),
    requested("empty", ""),
    requested("null", "null"),
    requested("no cards", "{}"),
    requested("none of a card", '{"A":0}'),
    requested("an alternative without a node", '{"A|NOPE":1}'),
    beyond("a card without a node", '{"NOPE":1}', "NOPE", 1000, 0),
    beyond("as many cards as there can be", '{"A":9223372036854775}', "A", 9223372036854775000, 8000),
]

SERVICES = [
    group(
        f"service type: {id}",
        BOUND,
        WarningEvent("PodGroup", "bad", "InvalidServiceType",
             f"Invalid annotation volcano.sh/service.type: <{escaped(text)}> is neither inference nor training; "
             "treated as unknown"),
        annotations={"volcano.sh/service.type": text},
    )
    for id, text in (("another word", "batch"), ("in capitals", "Training"), ("a blank", " training"),
                     ("a control character", "\x00"), ("huge", "x" * 5000))
]  # fmt: skip


def short(valid: int, minimum: int) -> str:
    """Too few pods for the gang."""
    return f"Not enough valid tasks for gang-scheduling, valid: {valid}, min: {minimum}"


ROLES = "Not enough valid pods of each task for gang-scheduling"


def no_queue(id: str, name: str, called: str = "") -> Case:
    """A queue that does not exist."""
    message = f"Queue <{called or name}> does not exist"
    return group(f"queue: {id}", message, *refused("QueueNotFound", message), queue=name, condition=message)


def conditions(id: str, *found: dict[str, Any]) -> Case:
    """Conditions of another writer."""
    return group(f"conditions: {id}", BOUND, conditions=found)


SPECS = [
    group("minMember: 0", BOUND, min_member=0),
    group("minMember: negative", BOUND, min_member=-7),
    group("minMember: more than there are", short(1, 5), min_member=5),
    group("minMember: beyond 64 bits", short(1, BIG), min_member=BIG),
    group("minTaskMember: of a role that does not exist", ROLES, min_task_member={"absent": 1}),
    group("minTaskMember: 0 of a role that does not exist", BOUND, min_task_member={"absent": 0}),
    group("minTaskMember: negative", BOUND, min_task_member={"absent": -1}),
    group("minTaskMember: empty role", BOUND, min_task_member={"": 1}),
    # A sum above minMember: the minimums per role do not apply.
    group("minTaskMember: beyond 64 bits", BOUND, min_task_member={"absent": BIG}),
    *(
        group(f"minResources: {id}", BOUND, invalid("PodGroup", "bad", f"spec.minResources[cpu]: {text}"),
              min_resources={"cpu": value})
        for id, value, text in BAD_QUANTITIES[::4]
    ),
    group("minResources: a device", BOUND, invalid("PodGroup", "bad", f"spec.minResources[{GPU}]: '-1' is negative"),
          min_resources={GPU: "-1"}),
    group("minResources: a resource that is none", BOUND, min_resources={"cups": "lots"}),
    *(
        group(f"phase: {id}", BOUND, invalid("PodGroup", "bad",
              f"status.phase: '{phase}' is none of Pending, Inqueue, Running, Unknown, Completed"), phase=phase)
        for id, phase in (("in lower case", "pending"), ("of a pod", "Succeeded"), ("with a blank", "Running "))
    ),
    group("phase: completed, with a pod that waits", BOUND, phase="Completed"),
    group("phase: not set yet", BOUND, phase=""),
    no_queue("missing", "absent"),
    no_queue("in capitals", "Q"),
    no_queue("with a blank", "q "),
    no_queue("huge", "x" * 5000),
    no_queue("none, and no default queue", "", "default"),
    conditions("empty", {"type": "", "status": ""}),
    conditions("no such status or time", {"type": "Unschedulable", "status": "Perhaps", "lastTransitionTime": "soon"}),
    conditions("the same again and again", *[{"type": "Scheduled", "status": "True"}] * 50),
    conditions("huge", {"type": "x" * 5000, "status": "True", "reason": "\x00", "message": "y" * 100_000}),
    group("priority class: missing", BOUND, priority_class="no such class"),
    group("annotations that other versions read", BOUND, annotations={
        "volcano.sh/sla-waiting-time": "soon", "volcano.sh/jdb-min-available": "x", "volcano.sh/preemptable": "?"}),
    group("labels that cannot be", BOUND, labels={"": "", "ключ": "\x00", "a" * 5000: "b" * 5000}),
    group("an owner without a proper kind", BOUND, owner_kind="\x00"),
]  # fmt: skip

CASES = [case._replace(id=f"group: {case.id}") for case in (*REQUESTS, *SERVICES, *SPECS)]
