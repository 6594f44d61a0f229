"""Malformed nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capcard_sched.testing import Harness
from tests.malformed.case import BOUND, Case, invalid
from tests.malformed.world import BAD_QUANTITIES, BIG, GPU, WarningEvent, World

SHARED = f"{GPU}.shared"


def cards(amounts: dict[str, int]) -> Callable[[World], bool]:
    """The cards of the cluster, in thousandths."""
    return lambda world: world.h.plugin("capacity-card").accounts.inventory.totals == amounts


def unused(world: World) -> bool:
    """No pod is placed on the malformed node."""
    return "bad" not in world.h.binds.values()


def node(id: str, *events: WarningEvent, check: Callable[[World], object] | None = None, **spec: Any) -> Case:
    """A second node with eight cards A, malformed."""
    return Case(f"node: {id}", lambda h: h.gpu_node("bad", **{"card": "A", **spec}), events, check=check)


def label(id: str, key: str, value: str, check: Callable[[World], object] | None, **spec: Any) -> Case:
    """A label that should be a positive integer."""
    events = WarningEvent("Node", "bad", "InvalidCardLabel", f"Label {key}={value} is not a positive integer")
    return node(f"label {id}", events, check=check, labels={key: value}, **spec)


def amount(id: str, resource: str, value: Any, text: str, check: Callable[[World], object] | None) -> Case:
    """An amount that cannot be read counts as not offered; the harness writes it as allocatable and as capacity."""
    detail = "; ".join(f"status.{field}[{resource}]: {text}" for field in ("allocatable", "capacity"))
    return node(f"{resource}: {id}", invalid("Node", "bad", detail), check=check, resources={resource: value})


def tainted(id: str, taint: dict[str, str], check: Callable[[World], object] | None = None) -> Case:
    """A taint written twice."""
    return node(f"taint: {id}", taints=[taint, taint], check=check)


def images(h: Harness) -> None:
    """Image sizes outside 64 bits, and below 0."""
    h.node("plain", images=[{"names": ["i:1"], "sizeBytes": BIG}, {"names": None}, {"names": ["i:1"], "sizeBytes": -5}])
    h.node("bad", images=[{"names": ["i:1", ""], "sizeBytes": BIG}])
    h.group("bad", queue="q")
    h.pod("bad", group="bad", containers=[{"image": "i:1", "resources": {"requests": {"cpu": "1"}}}])


BOTH, ONE = {"A": 16000}, {"A": 8000}

CASES = [
    # The whole cards of a node stay, whatever its memory label is; its MPS shares are cards of their resource then.
    *(
        label(f"memory: {id}", f"{GPU}.memory", value, cards(BOTH | {SHARED: 8000}), resources={SHARED: 8})
        for id, value in (
            ("a word", "many"), ("zero", "0"), ("negative", "-1"), ("a fraction", "1.5"), ("an exponent", "1e5"),
            ("nothing", ""), ("a blank before it", " 5"), ("another script", "\u0663"), ("400 digits", "9" * 400),
        )
    ),
    *(
        label(f"replicas: {id}", f"{GPU}.replicas", value, cards(BOTH | {SHARED: 8000}), resources={SHARED: 8})
        for id, value in (("a word", "two"), ("zero", "0"), ("negative", "-2"), ("400 digits", "9" * 400))
    ),
    node("label count: a word", labels={f"{GPU}.count": "lots"}, check=cards(BOTH)),
    node("label product: empty", card="", check=cards(ONE | {GPU: 8000})),
    node("label product: huge", card="x" * 5000, check=cards({"A": 8000, "x" * 5000: 8000})),
    node("label product: with a bar", card="A|B", check=cards({"A": 8000, "A|B": 8000})),
    node("label product: of no prefix", labels={".product": "A", "/gpu.product": "A"}, check=cards(BOTH)),
    node("label product: without memory", labels={"amd.com/gpu.product": "M"}, resources={"amd.com/gpu": 4},
         check=cards(BOTH | {"amd.com/gpu": 4000})),
    Case("node: devices without labels", lambda h: h.node("bad", resources={GPU: 4}), check=cards(ONE | {GPU: 4000})),
    *(amount(id, GPU, value, text, cards(ONE)) for id, value, text in BAD_QUANTITIES[::4]),
    *(
        Case(
            f"node: cpu: {id}",
            lambda h, value=value: h.gpu_node("bad", card="A", cpu=value),  # type: ignore[misc]
            (invalid("Node", "bad", f"status.allocatable[cpu]: {text}; status.capacity[cpu]: {text}"),),
            check=unused,
        )
        for id, value, text in BAD_QUANTITIES[1::4]
    ),
    *(amount(id, SHARED, value, text, cards(BOTH)) for id, value, text in BAD_QUANTITIES[2::6]),
    Case("node: pods: negative", lambda h: h.node("bad", pods=-4), (invalid("Node", "bad",
         "status.allocatable[pods]: '-4' is negative; status.capacity[pods]: '-4' is negative"),), check=unused),
    node("devices: none", resources={GPU: 0}, check=cards(ONE)),
    node("devices: a fraction", resources={GPU: "2.5"}, check=cards({"A": 11000})),
    node("resources without a proper name", resources={"": 1, "/": 1, "x/": 1, "nvidia.com/mig-": 3},
         check=cards({"A": 16000, "A/mig--mixed": 3000})),
    node("an undefined resource", resources={"cups": "lots", "requests.cpu": "?"}, check=cards(BOTH)),
    node("no cpu at all", cpu="0", memory="0", check=unused),
    tainted("unknown effect", {"key": "a", "effect": "Never"}),
    tainted("no effect", {"key": "a"}),
    tainted("empty", {}),
    tainted("without a key", {"effect": "NoSchedule"}, unused),
    tainted("a key and a value that cannot be", {"key": "x y", "value": "\x00{}", "effect": "NoExecute"}, unused),
    node("labels that cannot be", labels={"": "", "ключ": "\x00", "a" * 5000: "b" * 5000}, check=cards(BOTH)),
    node("unknown annotations", annotations={"volcano.sh/unknown-cpu": "x", "": "", "x" * 999: "y" * 99}),
    Case("node: image sizes", images, bad=BOUND),
]  # fmt: skip
