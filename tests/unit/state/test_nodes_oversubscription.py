"""Oversubscribed cpu and memory of nodes, which an agent publishes as annotations."""

from __future__ import annotations

import pytest

from capcard_sched.testing import Harness

CPU, MEMORY = "volcano.sh/oversubscription-cpu", "volcano.sh/oversubscription-memory"


@pytest.mark.parametrize(
    ("annotations", "cpu", "memory"),
    [
        ({}, 4000, 8 << 30),
        ({CPU: "1500"}, 5500, 8 << 30),
        ({CPU: "1500.5", MEMORY: "1073741824"}, 5500, 9 << 30),
        ({CPU: "0", MEMORY: "0"}, 4000, 8 << 30),
        ({CPU: "-1", MEMORY: "1Gi"}, 4000, 8 << 30),
        ({CPU: "nan", MEMORY: "inf"}, 4000, 8 << 30),
    ],
)
def test_oversubscribed_amounts_are_added_to_allocatable(annotations: dict[str, str], cpu: int, memory: int) -> None:
    h = Harness()
    h.node("n", cpu="4", memory="8Gi", annotations=annotations, labels={"volcano.sh/oversubscription": "true"})
    session = h.session()
    node = session.nodes.by_name["n"]
    assert (node.allocatable["cpu"], node.allocatable["memory"]) == (cpu, memory)
    assert session.nodes.allocatable[node.row, :2].tolist() == [cpu, memory]


def test_an_invalid_amount_is_a_problem_of_the_node() -> None:
    h = Harness()
    h.node("n", annotations={CPU: "1Gi"})
    h.session()
    (problem,) = [text for ref, text in h.state.problems.items() if ref.name == "n"]
    assert problem == f"metadata.annotations[{CPU}]: '1Gi' is not a number >= 0"


def test_a_node_without_valid_cpu_offers_the_oversubscribed_cpu_alone() -> None:
    h = Harness()
    h.node("n", cpu="many", annotations={CPU: "1500"})
    assert h.session().nodes.by_name["n"].allocatable["cpu"] == 1500


def test_pods_use_oversubscribed_cpu() -> None:
    h = Harness()
    h.node("n", cpu="1", annotations={CPU: "1000"})
    h.queue("q")
    h.group("g")
    h.pod("p", requests={"cpu": "2"})
    h.step()
    assert h.binds == {"p": "n"}
