"""The daemon and the controllers as processes of their own, run as users run them, for end-to-end tests."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from tests.clock import until
from tests.controlplane.processes import end, free_port, spawn

#: Replicas of the tests change over in a quarter of the time.
QUICK_ELECTION = (
    "--leader-elect-lease-duration=4s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=500ms",
)
#: The plugins of a cluster with card quotas.
CARD_CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: predicates}, {name: capacity-card}, {name: nodeorder}, {name: binpack}]
"""
#: Inference reclaims the cards of training. More plugins of the second tier may follow.
TIDE_CONF = """
actions: "enqueue, allocate, backfill, reclaim"
tiers:
- plugins:
  - name: priority
  - {name: gang, enableReclaimable: false}
  - {name: conformance, enableReclaimable: false}
- plugins:
  - name: predicates
  - name: capacity-card
    arguments:
      overCommitFactor: 2
      cardUnlimitedCpuMemory: true
      podOwnerReferenceToServiceType: {ReplicaSet: inference, Job: training}
  - name: nodeorder
"""
_PROGRAM = Path(sys.executable).with_name("capcard-sched")


class Program:
    """A verb of `capcard-sched` that serves metrics and health on ports of its own, as a process."""

    def __init__(self, verb: str, kubeconfig: Path, folder: Path, *flags: str, name: str) -> None:
        self.log_path = folder / f"{name}.log"
        self.metrics_port, self.health_port = free_port(), free_port()
        self.command: list[str | Path] = [
            _PROGRAM,
            verb,
            f"--kubeconfig={kubeconfig}",
            "--enable-metrics",
            f"--listen-address=127.0.0.1:{self.metrics_port}",
            "--enable-healthz",
            f"--healthz-address=127.0.0.1:{self.health_port}",
            "--log-format=json",
            *flags,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    # --- the process ------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Start it; returns at once."""
        self._process = await asyncio.to_thread(spawn, self.command, log=self.log_path, environment=dict(os.environ))
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def stop(self, *, within: float = 60.0) -> int:
        """SIGTERM; returns the exit status. Fails when it does not end in time."""
        self.signal(signal.SIGTERM)
        try:
            return await asyncio.to_thread(self.process.wait, within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it runs on {within:g} s after SIGTERM:\n{self.text[-6000:]}") from None

    async def kill(self) -> None:
        """SIGKILL."""
        self.signal(signal.SIGKILL)
        await asyncio.to_thread(self.process.wait, 5)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._process is not None:
            await asyncio.to_thread(end, self._process, gently=6)
        if kind is not None and error is not None:
            error.add_note(f"--- {self.log_path} ---\n{self.text[-6000:]}")

    # --- output -----------------------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def lines(self, message: str | None = None) -> list[dict[str, Any]]:
        """Its log lines, or those with this message; one that is not written to its end is none."""
        whole, _, _ = self.text.rpartition("\n")
        found: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return found if message is None else [line for line in found if line.get("msg") == message]

    async def logged(self, message: str, *, times: int = 1, within: float = 60.0) -> dict[str, Any]:
        """Wait for `times` log lines with this message; return the last one."""
        for _ in range(int(within / 0.05)):
            found = self.lines(message)
            if len(found) >= times:
                return found[-1]
            if self._process is not None and self._process.poll() is not None:
                break
            await asyncio.sleep(0.05)
        raise AssertionError(f"{message!r} was not logged {times} times:\n{self.text[-6000:]}")

    async def get(self, page: str) -> tuple[int, str]:
        """Status and text of a page: /metrics, /healthz or /readyz."""
        port = self.metrics_port if page == "/metrics" else self.health_port
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{page}") as answer:
            return answer.status, await answer.text()

    async def metrics(self) -> str:
        """The content of /metrics."""
        return (await self.get("/metrics"))[1]

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that have these labels; 0.0 when there is none."""
        text = await self.metrics()
        total = 0.0
        for line in text.splitlines():
            matched = re.fullmatch(rf"{re.escape(name)}(?:\{{(.*)\}})? (\S+)", line)
            if matched and all(f'{key}="{value}"' in (matched[1] or "") for key, value in labels.items()):
                total += float(matched[2])
        return total

    async def until_metric(self, name: str, value: float, *, within: float = 60.0, **labels: str) -> None:
        """Wait until a metric has this value."""
        found: list[float] = []

        async def has_it() -> bool:
            found[:] = [await self.metric(name, **labels)]
            return found == [value]

        try:
            await until(has_it, f"{name} {labels} to be {value:g}", within=within)
        except AssertionError as error:
            error.add_note(f"it is {found}")
            raise


class Daemon(Program):
    """`capcard-sched run` against a kubeconfig. Without `--leader-elect` unless flags add it."""

    def __init__(
        self, kubeconfig: Path, folder: Path, *flags: str, conf: str | None = None, name: str = "daemon"
    ) -> None:
        elects = any(flag.startswith("--leader-elect") for flag in flags)
        given = (f"--cache-dump-dir={folder}", *(() if elects else ("--leader-elect=false",)), *flags)
        super().__init__("run", kubeconfig, folder, *given, name=name)
        self.conf_path = folder / f"{name}-conf" / "scheduler.yaml"
        if conf is not None:
            self.conf_path.parent.mkdir(parents=True, exist_ok=True)
            self.conf_path.write_text(conf)
            self.command.append(f"--scheduler-conf={self.conf_path}")

    async def settled(self, *, sessions: int = 3) -> None:
        """Wait for `sessions` more sessions: they decide all that earlier changes cause at once.

        A session runs after a change, and after a second at most.
        """
        await self.logged("caches synced", within=60)
        before = await self.metric("volcano_cycles_total")

        async def passed() -> bool:
            return await self.metric("volcano_cycles_total") >= before + sessions

        await until(passed, f"{sessions} sessions", within=60)


class Controllers(Program):
    """`capcard-sched controllers` against a kubeconfig. Without leader election unless there are flags."""

    def __init__(self, kubeconfig: Path, folder: Path, *flags: str, name: str = "controllers") -> None:
        super().__init__("controllers", kubeconfig, folder, *(flags or ("--leader-elect=false",)), name=name)
