"""Shared cards: the shares of the pods on them, and their table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from capcard_sched.model.annotations import NODE_VGPU_REGISTER, VGPU_IDS
from capcard_sched.reports.shared_cards import shared_cards, shared_cards_table

CARDS = "A,10,1000,NVIDIA-NVIDIA L40S,true,hami-core:M,4,40536,NVIDIA-NVIDIA A100-SXM4-40GB,true,mig:"


def shared_node(name: str, text: str) -> dict[str, Any]:
    metadata = {"name": name, "annotations": {NODE_VGPU_REGISTER: text}}
    return {"kind": "Node", "metadata": metadata, "status": {"allocatable": {"volcano.sh/vgpu-number": "14"}}}


def sharing(name: str, devices: str, *, node: str | None = "n1", phase: str = "Running") -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": {VGPU_IDS: devices}},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase},
    }


def items_of(items: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [item for item in items if item["kind"] == kind]


def share_rows(*items: dict[str, Any]) -> list[tuple[str, int, int, int, int, list[str]]]:
    return [
        (row.node, row.gpu, row.shares, row.memory, row.cores, [tenant.pod for tenant in row.tenants])
        for row in shared_cards(items_of(items, "Node"), items_of(items, "Pod"))
    ]


def test_cards_have_the_shares_of_the_pods_on_them() -> None:
    pods = [
        sharing("one", "A,NVIDIA,100,10:;A,NVIDIA,200,0:"),
        sharing("two", "A,NVIDIA,300,50:M[group2-3],NVIDIA,3000,0:"),
        sharing("waits", "A,NVIDIA,400,0:", node=None, phase="Pending"),
        sharing("done", "A,NVIDIA,400,0:", phase="Succeeded"),
        sharing("elsewhere", "A,NVIDIA,400,0:", node="n2"),
    ]

    assert share_rows(shared_node("n1", CARDS), *pods) == [
        ("n1", 0, 3, 600, 60, ["default/one", "default/two"]),
        ("n1", 1, 1, 3000, 0, ["default/two"]),
    ]


def test_registrations_and_devices_that_cannot_be_read_show_nothing() -> None:
    assert share_rows(shared_node("n1", "nothing"), sharing("one", "garbage,")) == []
    assert share_rows(shared_node("n1", CARDS), sharing("one", "A,NVIDIA,x,y:"))[0][2] == 0


def test_the_table_pictures_cards_and_tenants() -> None:
    pods = [sharing("one", "A,NVIDIA,500,10:"), sharing("two", "A,NVIDIA,250,0:M[group2-3],NVIDIA,3000,0:")]
    words = " ".join(" ".join(shared_cards_table(shared_cards([shared_node("n1", CARDS)], pods))).split())
    assert "n1 0 2/10 750/1000 10% ██████████▓▓▓▓▓░░░░░ one 500, two 250 1 1/4 3000/40536 0%" in words
    assert "two 3000 [group2-3]" in words


def test_of_many_cards_the_fullest_are_shown() -> None:
    text = ":".join(f"C{number},10,1000,NVIDIA-T4,true,hami-core" for number in range(70)) + ":"
    lines = shared_cards_table(shared_cards([shared_node("n1", text)], [sharing("one", "C69,NVIDIA,500,0:")]))
    assert lines[2].split()[:4] == ["n1", "69", "1/10", "500/1000"]
    assert lines[-1] == "... and 6 more shared cards"
    assert shared_cards_table(()) == []
