"""Many NamespaceQueues: the readiness of all takes a constant number of steps for each, and short texts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from capcard_sched.controllers.namespace_queues import NamespaceQueueController
from capcard_sched.model.namespace_queues import NAMESPACE_QUEUE, QueueForest, QueueNode, Readiness, circle
from capcard_sched.validation.inventory import Inventory
from tests.lines import executed_lines
from tests.objects import stamp

#: Lines of Python for each queue.
_LINES = 700
#: Characters of the longest message.
_TEXT = 2_000


def _parents_of_a_chain(number: int, count: int) -> str:
    return f"q{number - 1}" if number else "cluster/default"


def _parents_of_a_circle(number: int, count: int) -> str:
    return f"q{(number + 1) % count}"


def _parents_of_siblings(number: int, count: int) -> str:
    return "q0" if number else "cluster/default"


_SHAPES: dict[str, Callable[[int, int], str]] = {
    "chain": _parents_of_a_chain,
    "circle": _parents_of_a_circle,
    "siblings": _parents_of_siblings,
}


def _objects(shape: Callable[[int, int], str], count: int, **spec: object) -> list[dict[str, object]]:
    return [
        {"kind": "NamespaceQueue", "apiVersion": "scheduling.volcano.sh/v1beta1",
         "metadata": {"name": f"q{number}", "namespace": "a", "uid": f"{number}"},
         "spec": {**spec, "parent": shape(number, count)}}
        for number in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("shape", _SHAPES.values(), ids=_SHAPES)
def test_readiness_of_many_queues_is_linear(shape: Callable[[int, int], str]) -> None:
    inventory = Inventory(_objects(shape, 1_000, deserved={"cpu": 1}, capability={"cpu": 1}))
    found: list[Readiness] = []
    executed_lines(lambda: found.extend(inventory.readiness(f"a/q{number}") for number in range(1_000)), 1_000 * _LINES)
    assert max(len(one.message) for one in found) <= _TEXT


def test_a_circle_is_shown_in_part() -> None:
    assert circle(["a", "b", "a"]) == "a below b below a"
    assert circle([f"q{number}" for number in range(100)]) == (
        "q0 below q1 below q2 below q3 below 92 more below q96 below q97 below q98 below q99"
    )


def test_the_oldest_namespaces_keep_what_they_have() -> None:
    nodes = {"default": QueueNode("", ("*",), deserved={"cpu": 10})}
    ages = {"a/q": 4, "b/q": 1, "c/q": 3, "d/q": 2}
    nodes |= {name: QueueNode("default", deserved={"cpu": 4}, created=age) for name, age in ages.items()}
    forest = QueueForest(nodes)
    ready = {name: forest.readiness(name).is_ready for name in nodes if "/" in name}
    assert ready == {"a/q": False, "b/q": True, "c/q": False, "d/q": True}
    assert forest.counted("b/q", "deserved") == {"cpu": 4}


@pytest.mark.parametrize("shape", _SHAPES.values(), ids=_SHAPES)
def test_a_created_queue_has_few_others_reconciled(shape: Callable[[int, int], str]) -> None:
    controller = NamespaceQueueController()
    queue = {"metadata": {"name": "default", "creationTimestamp": stamp(0)}, "spec": {}}
    assert not [*controller.keys("Queue", None, queue)]
    made = [key for obj in _objects(shape, 1_000) for key in controller.keys(NAMESPACE_QUEUE, None, obj)]
    assert len(made) <= 20_000
    closed = {**queue, "spec": {"allowedNamespaces": []}}
    affected: dict[object, int] = {_parents_of_a_chain: 16, _parents_of_a_circle: 0, _parents_of_siblings: 1_000}
    assert len([*controller.keys("Queue", queue, closed)]) == affected[shape]
