"""Figures per card behind a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from capcard_sched.cli.main import run
from capcard_sched.plugins.deviceshare.card_reasons import card_reasons
from capcard_sched.plugins.deviceshare.device_choice import BINPACK, NoChoice, choose_cards
from capcard_sched.plugins.deviceshare.shared_card import Cause
from tests.insight.scenes import written
from tests.unit.plugins.deviceshare.cluster import conf
from tests.unit.plugins.deviceshare.worlds import A100_40, A100_80, ledger, request

MIG = f"mig type={A100_40}"


@pytest.mark.parametrize(
    "cards, containers, annotations, texts",
    [
        (["GPU3:4914 1/2914/0"], ["1x3000"], {}, ["GPU3: 2,000 of 4,914 free, 3,000 requested"]),
        (["A:4914 1/914/0"], ["1xp90"], {}, ["A: 4,000 of 4,914 free, 4,422 requested"]),
        (["A:100 2/150/0"], ["1x1"], {}, ["A: 0 of 100 free, 1 requested"]),
        (["A:100 1/1/0 slots=1"], ["1x1"], {}, ["A: 1 of 1 slots in use"]),
        (["A:100 1/60/70"], ["1x1 c50"], {}, ["A: 30 of 100 cores free, 50 requested"]),
        (["A:100 1/60/100"], ["1x1"], {}, ["A: 0 of 100 cores free"]),
        (["A:100 1/1/0"], ["1x1 c100"], {}, ["A: 1 share in use, 100 cores need an unused card"]),
        (["A:100"], ["1x1"], {"use": "H100"}, ["A: type NVIDIA-NVIDIA L40S or uuid excluded by the pod's annotations"]),
        (["A:100 unhealthy", "B:100 1/90/0"], ["1x20"], {}, ["A: unhealthy", "B: 10 of 100 free, 20 requested"]),
        (["A:100", "B:100 1/90/0"], ["2x20"], {}, ["A: fits", "B: 10 of 100 free, 20 requested"]),
        (["A:100"], ["-", "1x90", "1x20"], {}, ["container c2: A: 10 of 100 free, 20 requested"]),
        (["A:90000 mig type=" + A100_80], ["1x80897"], {}, ["A: no free slice of 80,897 or more"]),
        (
            [f"M:40536 1/5120/0 mig group=group1:0 type={A100_40}"],
            ["1x8000"],
            {},
            ["M: no free slice of 8,000 or more, the card is cut as group1"],
        ),
        (["A:100"], ["3x1"], {}, ["3 cards requested, 1 registered"]),
        (["A:100 unhealthy", "B:100"], ["2x1"], {}, ["2 cards requested, 2 registered, 1 of them unhealthy"]),
        (["A:40536", f"M:40536 {MIG}"], ["2x1"], {"mode": "mig"}, ["2 cards requested, 1 registered"]),
        (["A:40536", f"M:40536 {MIG}"], ["1x50000"], {"mode": "mig"}, ["M: 40,536 of 40,536 free, 50,000 requested"]),
        (["A:100"], ["1x1"], {"mode": "mig"}, ["no card works in mode mig"]),
        (
            ["A:100"],
            ["1x1 c101"],
            {},
            ["container c0: volcano.sh/vgpu-cores is 101: expected an integer from 0 to 100"],
        ),
    ],
)
def test_a_refusal_lists_the_figures_of_each_card(
    cards: list[str], containers: list[str], annotations: dict[str, str], texts: list[str]
) -> None:
    node, wanted = ledger(*cards), request(*containers, **annotations)

    refused = choose_cards(node.cards, wanted, BINPACK)

    assert isinstance(refused, NoChoice)
    names = [f"c{index}" for index in range(len(containers))]
    assert list(card_reasons(wanted, refused, node.uuids, names).texts) == texts


def test_a_card_closed_by_the_podgroup_is_named() -> None:
    node, wanted = ledger("A:100"), request("1x1", policy="spread")

    refused = choose_cards(node.cards, wanted, BINPACK, {0: Cause.GROUP})

    assert isinstance(refused, NoChoice)
    assert card_reasons(wanted, refused, node.uuids, ["c"]).texts == ("A: has a pod of the same PodGroup",)


def test_explain_prints_the_figures_per_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cards = "".join(f"GPU-{index},10,4914,NVIDIA-NVIDIA L40S,true,hami-core:" for index in (2, 3))
    node = f"node n1 volcano.sh/vgpu-number=80 annotations={{volcano.sh/node-vgpu-register: '{cards}'}}"
    pods = {"a-holder": 2914, "b-holder": 4000, "waits": 3000}
    shares = (
        f"pod {name} limits=volcano.sh/vgpu-number:1,volcano.sh/vgpu-memory:{size}" for name, size in pods.items()
    )
    (tmp_path / "cluster.yaml").write_text(written("; ".join([node, *shares])))
    (tmp_path / "conf.yaml").write_text(conf(SchedulePolicy="spread"))

    command = ["explain", "waits", "-f", str(tmp_path / "cluster.yaml"), "--until", "1m"]
    assert run([*command, "--scheduler-conf", str(tmp_path / "conf.yaml")]) == 0

    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "NEAREST NODE DEVICE" in lines
    assert "n1 GPU-2: 914 of 4,914 free, 3,000 requested" in lines
    assert "GPU-3: 2,000 of 4,914 free, 3,000 requested" in lines
