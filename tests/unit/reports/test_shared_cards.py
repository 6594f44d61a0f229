from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from capcard_sched.model.annotations import NODE_VGPU_REGISTER, VGPU_IDS
from capcard_sched.reports.overview import survey
from capcard_sched.reports.tables import print_overview

CARDS = "A,10,1000,NVIDIA-NVIDIA L40S,true,hami-core:M,4,40536,NVIDIA-NVIDIA A100-SXM4-40GB,true,mig:"


def _node(name: str, text: str) -> dict[str, Any]:
    metadata = {"name": name, "annotations": {NODE_VGPU_REGISTER: text}}
    return {"kind": "Node", "metadata": metadata, "status": {"allocatable": {"volcano.sh/vgpu-number": "14"}}}


def _pod(name: str, devices: str, *, node: str | None = "n1", phase: str = "Running") -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": {VGPU_IDS: devices}},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase},
    }


def _rows(*items: dict[str, Any]) -> list[tuple[str, int, int, int, int, list[str]]]:
    return [
        (row.node, row.gpu, row.shares, row.memory, row.cores, [tenant.pod for tenant in row.tenants])
        for row in survey(items, 0, 0).shared_cards
    ]


def test_cards_have_the_shares_of_the_pods_on_them() -> None:
    pods = [
        _pod("one", "A,NVIDIA,100,10:;A,NVIDIA,200,0:"),
        _pod("two", "A,NVIDIA,300,50:M[group2-3],NVIDIA,3000,0:"),
        _pod("waits", "A,NVIDIA,400,0:", node=None, phase="Pending"),
        _pod("done", "A,NVIDIA,400,0:", phase="Succeeded"),
        _pod("elsewhere", "A,NVIDIA,400,0:", node="n2"),
    ]

    assert _rows(_node("n1", CARDS), *pods) == [
        ("n1", 0, 3, 600, 60, ["default/one", "default/two"]),
        ("n1", 1, 1, 3000, 0, ["default/two"]),
    ]


def test_registrations_and_devices_that_cannot_be_read_show_nothing() -> None:
    assert _rows(_node("n1", "nothing"), _pod("one", "garbage,")) == []
    assert _rows(_node("n1", CARDS), _pod("one", "A,NVIDIA,x,y:"))[0][2] == 0


def test_the_table_pictures_cards_and_tenants() -> None:
    out = StringIO()
    pods = [_pod("one", "A,NVIDIA,500,10:"), _pod("two", "A,NVIDIA,250,0:M[group2-3],NVIDIA,3000,0:")]

    print_overview(survey([_node("n1", CARDS), *pods], 0, 0), Console(file=out, width=120))

    words = " ".join(out.getvalue().split())
    assert "n1 0 2/10 750/1000 10% ██████████▓▓▓▓▓░░░░░ one 500, two 250 1 1/4 3000/40536 0%" in words
    assert "two 3000 [group2-3]" in out.getvalue()
