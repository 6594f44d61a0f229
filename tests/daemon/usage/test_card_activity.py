"""Held but unused card-hours, from a real Prometheus that has the series of DCGM's exporter."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from capcard_sched.cli.main import run
from capcard_sched.daemon.card_activity import CardMeter, PodGpus
from capcard_sched.framework.conf.scheduler_conf import default_text, parse_conf
from capcard_sched.framework.core import Core
from capcard_sched.insight.sources.object_view import DeltaObjects
from capcard_sched.ledger.unused_time import UnmeasuredError
from capcard_sched.simulation.clock import EPOCH
from capcard_sched.testing import registry
from capcard_sched.web.cluster import Cluster
from capcard_sched.web.usage import usage_view
from tests.controlplane.build import needed
from tests.controlplane.processes import end, free_port, spawn, tail
from tests.daemon.usage.build import locate, locate_promtool
from tests.scenarios.notation import manifests

pytestmark = pytest.mark.processes

#: `half` uses one of its cards always, one never, and one in the second hour; no exporter sees the cards of `unseen`,
#: and a share is no GPU of its own.
SCENARIO = """
node n1 8*NVIDIA-H200 cpu=64 memory=256Gi
queue q1 cards=NVIDIA-H200:4 cap=cpu:64,memory:256Gi
queue q2 cards=NVIDIA-H200:4 cap=cpu:64,memory:256Gi
pod half queue=q1 card=NVIDIA-H200 cpu=1 memory=1Gi gpu=3 scheduler=capcard-sched
pod unseen queue=q2 card=NVIDIA-H200 cpu=1 memory=1Gi gpu=1 scheduler=capcard-sched
"""
HOUR, STEP = 3600, 300
#: The utilization of three cards of the pod `mixed` in each five minutes of two hours, 0 or 1.
MIXED = [[Random(gpu).randint(0, 1) for _ in range(2 * HOUR // STEP)] for gpu in range(3)]


def samples() -> str:
    """Two hours of utilization, one sample per minute; the labels of the pod in both forms."""
    lines = ["# TYPE DCGM_FI_DEV_GPU_UTIL gauge"]
    own, exported = '{}="default",{}="half"', 'pod="dcgm-x",namespace="gpu",exported_{}="default",exported_{}="half"'
    for name, (labels, first, second) in {
        "GPU-0": (own, 90, 70), "GPU-1": (exported, 0, 0), "GPU-2": (own, 0, 50),
    }.items():  # fmt: skip
        text = f'DCGM_FI_DEV_GPU_UTIL{{UUID="{name}",Hostname="n1",{labels.format("namespace", "pod")}}}'
        lines += [f"{text} {first if at < HOUR else second} {EPOCH + at}" for at in range(30, 2 * HOUR, 60)]
    for gpu, busy in enumerate(MIXED):
        text = f'DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-M{gpu}",Hostname="n1",namespace="default",pod="mixed"}}'
        lines += [f"{text} {100 * busy[at // STEP]} {EPOCH + at}" for at in range(30, 2 * HOUR, 60)]
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus with these samples."""
    program, tool = needed(locate), needed(locate_promtool)
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    (folder / "prometheus.yml").write_text("scrape_configs: []\n")
    (folder / "samples").write_text(samples())
    create: list[str | Path] = [tool, "tsdb", "create-blocks-from", "openmetrics", folder / "samples", folder / "data"]
    subprocess.run(create, check=True, capture_output=True)
    command: list[str | Path] = [
        program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    log = folder / "prometheus.log"
    process = spawn(command, log=log)
    try:
        deadline = time.monotonic() + 60
        while not _is_ready(f"http://127.0.0.1:{port}/-/ready"):
            assert time.monotonic() < deadline, f"Prometheus did not become ready:\n{tail(log)}"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        end(process, gently=5)


def _is_ready(page: str) -> bool:
    try:
        with urlopen(page) as answer:
            return bool(answer.status == 200)
    except URLError:
        return False


def test_usage_has_the_held_but_unused_card_hours(
    prometheus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, database = tmp_path / "cluster.json", str(tmp_path / "day.db")
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests(SCENARIO)}))
    assert run(["simulate", "-f", str(file), "--until", "2h", "--ledger", database]) == 0
    capsys.readouterr()
    words = ["usage", "--ledger", database, "--prometheus", prometheus]

    assert run(words) == 0
    out, err = capsys.readouterr()
    rows = [line.split()[:5] for line in out.splitlines()[1:4]]
    assert rows == [
        ["QUEUE", "CARD", "USED", "UNUSED", "QUOTA"],
        ["q1", "NVIDIA-H200", "6.00", "3.00", "8.00"],
        ["q2", "NVIDIA-H200", "2.00", "-", "8.00"],
    ]
    assert err == "note: 2.00 of 8.00 card-hours are not measured: UNUSED leaves them out\n"

    assert run([*words, "--by", "day", "-o", "csv", "--since", "1h"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.endswith(",measured,unused")
    assert row.split(",")[:2] + row.split(",")[-2:] == ["2026-01-01", "4.00", "3.00", "1.00"]

    assert run([*words, "--by", "user", "-o", "json"]) == 0
    (group,) = json.loads(capsys.readouterr().out)["rows"]
    hour = HOUR * 1_000_000
    assert (group["used"], group["measured"], group["unused"]) == (8 * hour, 6 * hour, 3 * hour)


def test_the_gpus_of_a_pod_are_those_of_the_last_five_minutes(prometheus: str) -> None:
    meter = CardMeter.of_url(prometheus)
    assert meter.gpus(EPOCH + HOUR - 60)["default", "half"] == PodGpus(3, 2)
    assert meter.gpus(EPOCH + HOUR + 60)["default", "half"] == PodGpus(3, 1)
    with pytest.raises(UnmeasuredError, match="no series DCGM_FI_DEV_GPU_UTIL with the label pod"):
        meter.gpus()


def test_unused_is_the_integral_of_one_minus_the_utilization(
    prometheus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In `usage`, on the page of usage, and over time in the cards that `card list` shows."""
    file, database = tmp_path / "cluster.json", str(tmp_path / "day.db")
    scenario = "\n".join(line for line in SCENARIO.splitlines() if " q2 " not in line and "=q2 " not in line)
    items = manifests(scenario.replace("pod half", "pod mixed"))
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert run(["simulate", "-f", str(file), "--until", "2h", "--ledger", database]) == 0
    capsys.readouterr()
    expected = sum(STEP * (1 - utilization) for card in MIXED for utilization in card)
    assert 0 < expected < 6 * HOUR

    assert run(["usage", "--ledger", database, "--prometheus", prometheus, "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["measured"], row["unused"]) == (6 * HOUR * 1_000_000, expected * 1_000_000)

    conf = parse_conf(
        f"{default_text()}\nmetrics: {{type: prometheus, address: '{prometheus}'}}".encode(), registry=registry()
    ).conf
    assert conf is not None
    core = Core(conf, registry(), scheduler_names=("capcard-sched",), default_queue="default")
    page = usage_view(live_cluster(core, database), {})
    assert [group.unused for group in page.groups] == [round(expected / HOUR, 2)]

    meter = CardMeter.of_url(prometheus)
    seen = [meter.gpus(EPOCH + end)["default", "mixed"] for end in range(STEP, 2 * HOUR + 1, STEP)]
    assert [one.measured for one in seen] == [3] * len(seen)
    assert STEP * sum(one.unused for one in seen) == expected


def live_cluster(core: Core, database: str) -> Cluster:
    """A live cluster without objects and with a ledger: its pages of jobs are not read here."""

    def unread(*_: object) -> Any:
        raise AssertionError

    return Cluster(
        core=core,
        objects=DeltaObjects(()),
        now=EPOCH + 2 * HOUR,
        source="",
        is_live=True,
        unreadable=(),
        warnings=(),
        headlines=unread,
        session=unread,
        expected_start=unread,
        what_if=unread,
        ledger=database,
    )
