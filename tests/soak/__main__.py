"""`python -m tests.soak`: two replicas on a real control plane under churn and random faults, checked by an oracle.

A seed determines the fault schedule. The exit status is 1 if the oracle finds a violation.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Coroutine
from pathlib import Path
from typing import Any, Final

from tests.controlplane.build import UnavailableError, locate
from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.preparation import prepare
from tests.controlplane.proxy import Proxy
from tests.e2e.claims.oracle import DeviceOracle
from tests.e2e.history import KINDS, History, Moment
from tests.soak import schedule
from tests.soak.admission import AdmissionFaults
from tests.soak.devices import CLAIM_CONTROLLERS, DEVICE_KINDS, DeviceChurn
from tests.soak.faults import HALF_GANG_SECONDS, FaultInjector, Replica
from tests.soak.hostile import HostileTenant
from tests.soak.oracle import Oracle
from tests.soak.resources import ResourceSampler
from tests.soak.tenant import TENANT, install_policies
from tests.soak.workload import NAMESPACE, Churn, node_manifests, priority_classes, queue_manifests

_CONF: Final = """
actions: "enqueue, allocate, backfill, preempt, reclaim"
tiers:
- plugins:
  - name: priority
  - {name: gang, enableReclaimable: false}
  - {name: conformance, enableReclaimable: false}
- plugins:
  - name: predicates
  - {name: capacity-card, arguments: {unnamedCards: infer, cardUnlimitedCpuMemory: true}}
  - name: nodeorder
  - name: binpack
"""
#: Seconds: changes are replayed this late, so that watches of all kinds have delivered theirs.
_LAG: Final = 15.0
#: Seconds: between two steps of the oracle.
_STEP: Final = 5.0
#: Seconds: after the faults, until gangs are complete and preemptors bound.
_SETTLE: Final = 90.0
#: Seconds by which faults may delay the eviction of a half gang: outages, elections, paused watches.
_MOST_DELAY: Final = 90.0


class Soak:
    """One run. `report` is complete after `run`."""

    def __init__(self, seconds: float, seed: int, only: Collection[str] = (), gap: float = schedule.MEAN_GAP) -> None:
        self.seconds = seconds
        self.seed = seed
        #: Seconds: mean time between two faults.
        self._gap = gap
        #: Kinds of faults; empty: all.
        self._only = only
        self.faults: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.oracle = Oracle(grace=30.0, half_gang=HALF_GANG_SECONDS + _MOST_DELAY)
        self.devices = DeviceOracle(grace=30.0)
        self.resources = ResourceSampler()
        self.report: dict[str, Any] = {}
        self._last_revision = 0
        #: Revisions of moments that are older than one that is replayed already, and those of the latest one then: the
        #: order of revisions is not certain between them.
        self._late: list[tuple[int, int]] = []

    async def run(self, control_plane: ControlPlane, folder: Path) -> None:
        """Run churn and faults, let the cluster settle, and check."""
        began = time.monotonic()
        async with (
            Cluster(control_plane, namespace=NAMESPACE) as cluster,
            Cluster(control_plane, user=TENANT, namespace=NAMESPACE) as tenant,
            Kubelet(control_plane, start_delay=0.2, stop_delay=0.3) as kubelet,
            Proxy(control_plane) as proxy_a,
            Proxy(control_plane) as proxy_b,
            Proxy(control_plane) as proxy_controllers,
        ):
            await prepare(cluster)
            await cluster.make_namespace(NAMESPACE)
            await install_policies(cluster)
            await asyncio.to_thread(control_plane.start_controller_manager, CLAIM_CONTROLLERS)
            async with History(control_plane, (*KINDS, *DEVICE_KINDS, "leases")) as history:
                await cluster.create_all([*priority_classes(), *node_manifests(), *queue_manifests()])
                replicas = [
                    Replica("scheduler-a", proxy_a, folder, _CONF),
                    Replica("scheduler-b", proxy_b, folder, _CONF),
                ]
                churn, claims = Churn(cluster, kubelet, self.seed), DeviceChurn(cluster, kubelet, self.seed)
                await claims.start()
                hostile = HostileTenant(cluster, control_plane, kubelet, proxy_controllers, folder)
                admission = AdmissionFaults(cluster, control_plane, folder)
                injector = FaultInjector(cluster, tenant, control_plane, kubelet, churn, replicas, hostile, admission)
                await admission.start()
                try:
                    for replica in replicas:
                        await replica.start()
                    await hostile.start()
                    await self._disturb(churn, claims, injector, history, replicas, admission)
                    await injector.heal()
                    await hostile.check()
                    await claims.stop()
                    await self._settle(churn, history)
                finally:
                    await hostile.stop()
                    await admission.stop()
                    for replica in replicas:
                        with contextlib.suppress(AssertionError, ProcessLookupError):
                            await replica.daemon.stop()
            identities = {identity: replica.user for replica in replicas for identity in replica.identities()}
        await asyncio.to_thread(control_plane.stop_controller_manager)
        self.oracle.finish(control_plane.audit(), identities, [NAMESPACE])
        self.devices.finish()
        self.report = self._report(time.monotonic() - began, churn, history, replicas)
        self.report["claims"] = {"jobs": claims.created, "withdrawals": claims.withdrawals, **self.devices.totals}
        self.report["incarnations"]["controllers"] = len(hostile.processes)
        self.report["incarnations"]["admission"] = admission.starts
        self.report["admissionRequests"] = dict(sorted(admission.requests.items()))
        self.report["violations"] += hostile.violations + admission.violations

    async def _disturb(
        self,
        churn: Churn,
        claims: DeviceChurn,
        injector: FaultInjector,
        history: History,
        replicas: list[Replica],
        admission: AdmissionFaults,
    ) -> None:
        """Churn and faults for the given time."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(churn.run()),
                group.create_task(claims.run()),
                group.create_task(admission.run()),
                group.create_task(self._replay(history)),
                group.create_task(self._sample(replicas, injector.hostile, admission)),
            ]
            running: list[asyncio.Task[None]] = []
            for fault in schedule.fault_schedule(self.seed, self.seconds, self._only, self._gap):
                await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
                running.append(group.create_task(self._strike(fault.kind, injector.execute(fault))))
            await asyncio.sleep(max(0.0, began + self.seconds - time.monotonic()))
            await asyncio.gather(*running)
            for task in background:
                task.cancel()

    async def _strike(self, kind: str, action: Coroutine[Any, Any, bool]) -> None:
        (self.faults if await action else self.skipped)[kind] += 1

    async def _replay(self, history: History) -> None:
        while True:
            await asyncio.sleep(_STEP)
            self._apply(history, time.monotonic() - _LAG)

    def _apply(self, history: History, before: float) -> None:
        for moment in history.take(before):
            if moment.revision < self._last_revision:
                self._late.append((moment.revision, self._last_revision))
            self._last_revision = max(self._last_revision, moment.revision)
            self.oracle.apply(_only(moment, (*KINDS, "leases")))
            self.devices.apply(_only(moment, (*KINDS, *DEVICE_KINDS)))

    async def _sample(self, replicas: list[Replica], hostile: HostileTenant, admission: AdmissionFaults) -> None:
        """Read the memory of all processes; one that is killed has another name afterwards."""
        while True:
            hostile.proxy.exchanges.clear()
            for name, pid in (*hostile.running(), *admission.running()):
                self.resources.sample(pid, name)
            for replica in replicas:
                self.resources.sample(replica.daemon.process.pid, replica.daemon.log_path.stem)
                replica.proxy.exchanges.clear()
            await asyncio.sleep(_STEP)

    async def _settle(self, churn: Churn, history: History) -> None:
        """Wait until no gang is incomplete and no preemptor pending, while jobs that wait for quota are deleted."""
        deadline = time.monotonic() + _SETTLE
        await history.caught_up(within=_SETTLE)
        while time.monotonic() < deadline:
            await asyncio.sleep(2)
            self._apply(history, time.monotonic() - 2)
            if not (self.oracle.incomplete() or self.oracle.unserved() or self.devices.unused()):
                return
            if churn.jobs:  # free capacity: the oldest jobs finish
                with contextlib.suppress(RequestError, OSError, TimeoutError):
                    await churn.finish(churn.jobs[0])
        self._apply(history, time.monotonic())

    def _report(self, took: float, churn: Churn, history: History, replicas: list[Replica]) -> dict[str, Any]:
        oracle = self.oracle
        return {
            "seed": self.seed,
            "seconds": round(took, 1),
            "jobs": churn.created,
            "binds": len(oracle.binds),
            "evictions": len(oracle.evictions),
            "incarnations": {replica.user: len(replica.daemons) for replica in replicas},
            "terms": {replica.user: len(replica.identities()) for replica in replicas},
            "faults": dict(sorted(self.faults.items())),
            "skippedFaults": dict(sorted(self.skipped.items())),
            "historyGaps": history.gaps,
            "lateMoments": self._late,
            "resources": self.resources.growth(),
            "violations": [
                f"revision {one.revision}: {one.text}" for one in (*oracle.violations, *self.devices.violations)
            ],
        }


def _only(moment: Moment, kinds: Collection[str]) -> Moment:
    """The changes of some kinds."""
    return moment._replace(changes=tuple(change for change in moment.changes if change.kind in kinds))


def main() -> int:
    """Run one soak and print its report as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="duration of churn and faults")
    parser.add_argument("--seed", type=int, default=None, help="seed of the fault schedule; default: random")
    parser.add_argument("--keep", type=Path, default=None, help="folder for the logs of the replicas")
    parser.add_argument("--faults", default="", help="kinds of faults, separated by commas; default: all")
    parser.add_argument("--gap", type=float, default=schedule.MEAN_GAP, help="seconds: mean time between two faults")
    options = parser.parse_args()
    only = [kind for kind in options.faults.split(",") if kind]
    if unknown := sorted(set(only) - set(schedule.KINDS)):
        parser.error(f"unknown kinds of faults: {', '.join(unknown)} (accepted: {', '.join(schedule.KINDS)})")
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)  # connections that the proxy resets
    seed = int(time.time()) % 10**6 if options.seed is None else options.seed
    try:
        programs = locate()
    except UnavailableError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stderr.write(f"soak: seed {seed}, {options.minutes:g} minutes\n")
    soak = Soak(options.minutes * 60, seed, only, options.gap)
    with tempfile.TemporaryDirectory() as folder, ControlPlane(programs) as control_plane:
        target = options.keep or Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        asyncio.run(soak.run(control_plane, target))
    sys.stdout.write(json.dumps(soak.report, indent=2) + "\n")
    violations = soak.report["violations"] + soak.resources.leaks()
    for text in violations:
        sys.stderr.write(f"violation: {text}\n")
    sys.stderr.write(f"soak: {len(violations)} violations; repeat with --seed {seed}\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
