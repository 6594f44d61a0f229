"""Malformed Queues."""

from __future__ import annotations

from typing import Any

from capcard_sched.model.annotations import CARD_QUOTA
from capcard_sched.testing import Harness
from tests.malformed.case import Case, invalid
from tests.malformed.world import BAD_QUANTITIES, BIG, CARDS_HERE, GPU, HERE, WarningEvent

NO_CARDS = "Queue <q> has insufficient <A> quota: requested <2000>, total would be <2000>, but capability is <0>"
NO_CPU = "Queue <q> has insufficient CPU quota: requested <2000>, total would be <2000>, but capability is <0>"
NOT_JSON = 'expected an object such as {"NVIDIA-H200":8}'
NO_INTEGER = "is not a whole number"
TOO_DEEP = "nested too deeply; expected a JSON object of card names and integers"


def queue(id: str, *events: WarningEvent, **spec: Any) -> Case:
    """Queue `q` is malformed and blocks no job."""
    return Case(id, lambda h: h.queue("q", **{"cards": {"A": 8}, **spec}), events)


def queues(h: Harness, **parents: str) -> None:
    """Queues with such parents."""
    for name, parent in parents.items():
        h.queue(name, cards={"A": 8}, parent=parent)


def weightless(h: Harness) -> None:
    """No queue deserves anything."""
    h.queue("q", weight=0)
    h.queue("other", weight=0)


def void(id: str, text: str, detail: str) -> Case:
    """A quota that is void as a whole: no cards, and cpu goes on."""
    message = f"Invalid annotation {CARD_QUOTA}: {detail}; all card quotas of Queue <q> are 0"
    events = WarningEvent("Queue", "q", "InvalidCardQuota", message)
    return Case(id, lambda h: h.queue("q", cards=text), (events,), held=frozenset({CARDS_HERE}), held_by=NO_CARDS)


def without(id: str, text: str) -> Case:
    """A well-formed quota without card A."""
    return Case(id, lambda h: h.queue("q", cards=text), held=frozenset({CARDS_HERE}), held_by=NO_CARDS)


OVERLAP = "overlap: one of them must have all cards of the other"
#: Forms of one kind each; tests/unit/model/test_cards.py has them all.
QUOTAS = [
    void("cut off", "{", f"not JSON: Expecting property name enclosed in double quotes at line 1 column 2; {NOT_JSON}"),
    void("a fraction", '{"A":2.5}', f"<A>: 2.5 {NO_INTEGER}"),
    void("a group with an empty name", '{"A|":1}', "<A|>: 1 has an empty card name"),
    void("groups that overlap", '{"A|B":1,"B|C":1}', f"<A|B> and <B|C> {OVERLAP}"),
    void("a card twice", '{"A":1,"A":1}', "<A>: 1 is a duplicate key; name each card once"),
    void("half a surrogate pair", '{"\\ud800":1}', '"\\ud800" is not valid Unicode text'),
    void("deep objects", '{"A":' * 20_000, TOO_DEEP),
    void("too long", "x" * 300_000, "longer than 262144 characters"),
    without("empty", ""),
    without("null", "null"),
    without("no cards", "{}"),
    without("only cards without a node", '{"カード":3,"B":1}'),
    without("a card in the wrong case", '{"a":8}'),
    queue("blanks around a card", cards='{" A ":8}'),
    queue("a card beside one that cannot be", cards='{"no such card":1,"A":8}'),
    queue("as many cards as there can be", cards='{"A":9223372036854775}'),
]  # fmt: skip

AMOUNTS = [
    # An unreadable limit is no open gate: it reads as 0.
    *(
        Case(
            f"capability: {id}",
            lambda h, value=value: h.queue("q", cards={"A": 8}, capability={"cpu": value}),  # type: ignore[misc]
            (invalid("Queue", "q", f"spec.capability[cpu]: {text}"),),
            held=HERE,
            held_by=NO_CPU,
        )
        for id, value, text in BAD_QUANTITIES[::3]
    ),
    *(
        queue(f"{field}: {id}", invalid("Queue", "q", f"spec.{path}[memory]: {text}"), **{field: {"memory": value}})
        for field, path in (("guarantee", "guarantee.resource"), ("deserved", "deserved"))
        for id, value, text in BAD_QUANTITIES[1::5]
    ),
    # Devices in a capability are not card quotas: an event, and no effect.
    queue("capability: a device", invalid("Queue", "q", f"spec.capability[{GPU}]: '-8' is negative"),
          capability={GPU: "-8"}),
    queue("capability: a resource that does not exist", capability={"cups": "lots", "count/pods": "?"}),
    queue("capability: beyond every node", capability={"cpu": "1e400", "memory": BIG}),
    queue("capability: nothing in it", capability={}, guarantee={}, deserved={}),
    Case("capability: zero", lambda h: h.queue("q", cards={"A": 8}, capability={"cpu": 0}), held=HERE, held_by=NO_CPU),
]  # fmt: skip

STATES = [
    Case(
        f"state: {id}",
        lambda h, state=state: h.queue("q", cards={"A": 8}, state=state),  # type: ignore[misc]
        held=HERE,
        held_by=f"Queue <q> is <{state}>, cannot enqueue",
    )
    for id, state in (("closed", "Closed"), ("in lower case", "open"), ("unknown", "Unknown"), ("huge", "x" * 5000))
]

PROPORTION = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: overcommit}, {name: drf}, {name: proportion}, {name: predicates}, {name: nodeorder}]
"""
HIERARCHY = PROPORTION.replace("{name: drf}, {name: proportion}", "{name: drf, enableHierarchy: true}")


def hierarchy(id: str, path: str, weights: str) -> Case:
    """Annotations that drf reads when it is hierarchical."""
    notes = {"volcano.sh/hierarchy": path, "volcano.sh/hierarchy-weights": weights}
    return Case(f"hierarchy: {id}", lambda h: h.queue("q", annotations=notes), conf=HIERARCHY)


OTHERS = [
    queue("state: not set yet", state=""),
    *(queue(f"priority: {value}", priority=value) for value in (-1, BIG, -BIG)),
    *(
        Case(f"weight: {value}", lambda h, value=value: h.queue("q", weight=value), conf=PROPORTION)  # type: ignore[misc]
        for value in (0, -1, BIG)
    ),
    Case("weight: 0 everywhere", weightless, conf=PROPORTION),
    queue("parent: itself", parent="q"),
    queue("parent: missing", parent="absent"),
    Case("parent: in a circle of two", lambda h: queues(h, q="p", p="q")),
    Case("parent: below a circle", lambda h: queues(h, q="p", p="r", r="p")),
    hierarchy("a weight that is none", "root/q", "1/x"),
    hierarchy("a weight of 0", "root/q", "1/0"),
    hierarchy("a negative weight", "root/q", "1/-5"),
    hierarchy("weights that are no finite numbers", "root/q", "nan/inf"),
    hierarchy("more names than weights", "root/a/b/c/q", "1"),
    hierarchy("very deep", "root" + "/x" * 2000, "1" + "/1" * 2000),
    queue("unknown annotations", annotations={"": "", "x" * 1000: "y" * 100_000, "volcano.sh/card.quotas": "{"}),
]

CASES = [case._replace(id=f"queue: {case.id}") for case in (*QUOTAS, *AMOUNTS, *STATES, *OTHERS)]
