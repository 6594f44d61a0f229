"""The scheduler-conf of a running daemon, changed well and badly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.e2e.checker import prove
from tests.e2e.daemons import CARD_CONF, QUICK_ELECTION, Daemon
from tests.e2e.expectations import until, until_bound
from tests.e2e.faults.workloads import create_gangs, furnish
from tests.e2e.history import History

#: Groups are let in, and nothing is placed.
_IDLE_CONF = CARD_CONF.replace(", allocate, backfill", "")
_BAD_CONFS = {
    "no-yaml": "actions: [enqueue",
    "no-list": CARD_CONF.replace("- plugins", "  plugins"),
    "empty": "",
}
_REJECTED = "scheduler-conf rejected"
_REASON = "*the built-in one): scheduler-conf (line 1): not valid YAML*"


async def _waits(cluster: Cluster, gang: str) -> None:
    """Wait until a gang is let in, and see that it stays at that."""

    await until(cluster, "podgroups", gang, status={"phase": "Inqueue"})
    assert not [name for name in await cluster.bound() if name.startswith(f"{gang}-")]


def _in_use(daemon: Daemon) -> str:
    """The actions of the scheduler-conf that was accepted last."""
    return [str(line["actions"]) for line in daemon.lines("scheduler-conf loaded") if "actions" in line][-1]


async def test_a_valid_conf_is_loaded_and_an_invalid_one_is_reported_and_ignored(
    cluster: Cluster, history: History, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await furnish(cluster, cards=24)
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=_IDLE_CONF) as daemon:
        await create_gangs(cluster, ["first"], 4)
        await _waits(cluster, "first")
        daemon.conf_path.write_text(CARD_CONF)
        await until_bound(cluster, 4)
        for count, (name, conf) in enumerate(_BAD_CONFS.items(), start=1):
            daemon.conf_path.write_text(conf)
            await daemon.logged(_REJECTED, times=count, within=60)
            await create_gangs(cluster, [name], 4)
            await until_bound(cluster, 4, f"{name}-.*")
        assert await daemon.metric("volcano_config_reload_total", result="rejected") == len(_BAD_CONFS)

        about = {"name": "default"}
        await until(
            cluster, "events", namespace="default", reason="InvalidSchedulerConf", message=_REASON, involvedObject=about
        )
        daemon.conf_path.unlink()
        await daemon.logged(_REJECTED, times=len(_BAD_CONFS) + 1, within=60)
        daemon.conf_path.write_text(_IDLE_CONF)
        await cluster.wait_until(lambda: _in_use(daemon) == "enqueue", "the first conf to be in use again", within=60)
        await create_gangs(cluster, ["last"], 4)
        await _waits(cluster, "last")
        assert len(daemon.lines("starting")) == 1
        await prove(history, daemon)


@pytest.mark.campaign
async def test_a_conf_that_is_invalid_at_the_start_is_reported_like_an_invalid_change(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    kubeconfig = control_plane.kubeconfig_for("scheduler-a")
    async with Daemon(kubeconfig, tmp_path, *QUICK_ELECTION, "--leader-elect", conf="actions: [enqueue") as daemon:
        await until(cluster, "events", namespace="default", reason="InvalidSchedulerConf", message=_REASON)
        assert await daemon.stop() == 0
    assert not [line for line in daemon.lines() if line["level"] == "warning"], "an end that is wanted is no alarm"
