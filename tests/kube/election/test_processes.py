"""Elections between processes that are stopped, woken and killed."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.processes import end, spawn
from tests.kube.election.electors import until

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).resolve().parents[3]


class Look(NamedTuple):
    """The time at which a replica was polled, its response, and the reports of its election since the last poll."""

    at: float
    leads: bool
    reported: tuple[str, ...]


class Process:
    """A replica of `replica.py`."""

    def __init__(self, cluster: Cluster, identity: str, folder: Path) -> None:
        self.log = folder / f"{identity}.looks"
        kubeconfig = cluster.control_plane.kubeconfig_for("scheduler-a")
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "tests.kube.election.replica",
            kubeconfig,
            cluster.namespace,
            identity,
            self.log,
        ]
        self.popen: subprocess.Popen[bytes] = spawn(
            command, log=folder / f"{identity}.output", environment={**os.environ, "PYTHONPATH": str(ROOT)}
        )

    def send(self, number: int) -> None:
        self.popen.send_signal(number)

    def looks(self) -> list[Look]:
        if not self.log.exists():
            return []
        lines = self.log.read_text("utf-8").rpartition("\n")[0].splitlines()
        parts = [line.split() for line in lines]
        return [Look(float(at), leads == "1", tuple(reported)) for at, leads, *reported in parts]

    def leads(self) -> bool:
        """Whether it reported so just now."""
        looks = self.looks()
        return bool(looks) and looks[-1].leads and time.monotonic() - looks[-1].at < 0.5


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for each in started:
        end(each.popen)


def together(one: Process, two: Process) -> list[tuple[float, float]]:
    """Spans of time in which both reported that they led, between two polls of each that were close to one another."""

    def spans(process: Process) -> list[tuple[float, float]]:
        looks = process.looks()
        return [
            (before.at, after.at)
            for before, after in itertools.pairwise(looks)
            if before.leads and after.leads and after.at - before.at < 0.1
        ]

    others = spans(two)
    return [(max(a, c), min(b, d)) for a, b in spans(one) for c, d in others if max(a, c) < min(b, d)]


async def two_replicas(cluster: Cluster, folder: Path, processes: list[Process]) -> tuple[Process, Process]:
    """A leader and a standby."""
    for name in ("a", "b"):
        processes.append(Process(cluster, name, folder))
        await until(processes[0].leads, "a leader")
    await until(lambda: len(processes[1].looks()) > 100, "a standby")
    return processes[0], processes[1]


async def test_a_replica_that_slept_through_its_lease_does_not_lead_when_it_wakes(
    cluster: Cluster, tmp_path: Path, processes: list[Process]
) -> None:
    leader, standby = await two_replicas(cluster, tmp_path, processes)
    leader.send(signal.SIGSTOP)
    stopped = time.monotonic()
    assert await until(standby.leads, "the next leader") < 6.5
    await asyncio.sleep(1.0)
    leader.send(signal.SIGCONT)
    await until(lambda: leader.looks()[-1].at > time.monotonic() - 0.2, "its waking")
    await asyncio.sleep(2.0)
    awake = [look for look in leader.looks() if look.at > stopped + 1.0]
    # The first line may be of a poll from before it was stopped: the response is taken before the time.
    assert len(awake) > 100
    assert not any(look.leads for look in awake[1:])
    assert [reported for look in awake for reported in look.reported] == ["False"]
    assert standby.leads()
    assert not together(leader, standby)
    assert (await cluster.get("leases", "the-lease"))["spec"]["leaseTransitions"] == 1


async def test_a_replica_that_slept_alone_leads_again_in_a_new_term(
    cluster: Cluster, tmp_path: Path, processes: list[Process]
) -> None:
    leader = Process(cluster, "a", tmp_path)
    processes.append(leader)
    await until(leader.leads, "a leader")
    leader.send(signal.SIGSTOP)
    stopped = time.monotonic()
    await asyncio.sleep(5.0)
    leader.send(signal.SIGCONT)
    await until(leader.leads, "a leader again")
    awake = [look for look in leader.looks() if look.at > stopped + 1.0]
    assert [reported for look in awake for reported in look.reported] == ["False", "True"]
    again = next(index for index, look in enumerate(awake) if "True" in look.reported)
    # As above, the first line may be of an earlier poll; the conclusive one may have been made just before.
    assert not any(look.leads for look in awake[1 : again - 1])
    assert (await cluster.get("leases", "the-lease"))["spec"]["leaseTransitions"] == 1


async def test_kill_and_termination_hand_over_and_no_two_processes_lead(
    cluster: Cluster, tmp_path: Path, processes: list[Process]
) -> None:
    leader, standby = await two_replicas(cluster, tmp_path, processes)
    leader.send(signal.SIGKILL)
    assert 2.5 < await until(standby.leads, "the next leader") < 6.5
    third = Process(cluster, "c", tmp_path)
    processes.append(third)
    await until(lambda: len(third.looks()) > 100, "a standby")
    await asyncio.sleep(1.0)
    standby.send(signal.SIGTERM)
    assert await until(third.leads, "the one after") < 2.0
    assert standby.popen.wait(5) == 0
    assert not together(leader, standby) + together(standby, third)
