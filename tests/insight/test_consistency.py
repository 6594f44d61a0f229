"""One quantity is equal in all verbs: lists, the tables of `simulate`, `explain`, statuses and metrics."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from capcard_sched.cli.capacity import read_cards, read_nodes
from capcard_sched.cli.job import LISTING as JOBS
from capcard_sched.cli.job import read_jobs
from capcard_sched.cli.lists import Listing, Printer
from capcard_sched.cli.overview import card_totals, print_overview
from capcard_sched.cli.queue import LISTING as QUEUES
from capcard_sched.cli.queue import read_queues
from capcard_sched.cli.sources.inputs import LoadedCluster
from capcard_sched.cli.sources.load import load_cluster
from capcard_sched.cli.sources.source import Source
from capcard_sched.framework.explain.limits import quota_samples
from capcard_sched.insight.diagnosis.explain import explain, find
from capcard_sched.model.diagnosis import LimitUse
from capcard_sched.model.quantity import in_units
from capcard_sched.model.resources import CPU, MEMORY
from tests.insight.oracle_figures import amount
from tests.scenarios.notation import expanded

HERE = Path(__file__).parent
#: File, the moment at which it is compared.
SITUATIONS = sorted({(case["file"], case["until"]) for case in yaml.safe_load((HERE / "cases.yaml").read_text())})
_EXAMPLES = Path("config/examples")
INPUTS = [
    *(pytest.param(name, until, None, id=f"{name} {until}") for name, until in SITUATIONS),
    *(pytest.param("demo", until, None, id=f"demo {until}") for until in ("30s", "90s", "10m")),
    pytest.param("vgpu", "1m", _EXAMPLES / "vgpu" / "conf" / "scheduler.yaml", id="shared cards"),
]


def _file(name: str) -> str:
    situation = HERE / "situations" / f"{name}.yaml"
    return str(expanded(situation) if situation.exists() else _EXAMPLES / name)


@pytest.mark.parametrize("name, until, conf", INPUTS)
def test_the_same_quantity_is_equal_in_all_verbs(
    name: str, until: str, conf: Path | None, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Source(file=(_file(name),), until=until, scheduler_conf=conf)
    found = load_cluster(source, read_only=True, jobs=True)
    jobs, queues = read_jobs(found), read_queues(found)
    _check_explanations(load_cluster(source), jobs, queues)
    _check_objects(found, jobs, queues)
    _check_cards(found, queues)
    _check_tables(load_cluster(source, read_only=True, jobs=True), jobs, queues, capsys)


def _check_explanations(cluster: LoadedCluster, jobs: list[dict[str, Any]], queues: list[dict[str, Any]]) -> None:
    uses = {(queue["name"], use["card"]): use for queue in queues for use in queue["cards"]}
    resources = {queue["name"]: queue["resources"] for queue in queues}
    for job in jobs:
        name = f"podgroup/{job['podGroup']}" if job["podGroup"] else f"{job['kind']}/{job['name']}"
        subject = find(cluster.core, cluster.objects, job["namespace"], name)
        assert subject is not None, name
        diagnosis = explain(cluster.core, cluster.objects, subject, cluster.now)
        if job["stage"]:
            assert (job["stage"], job["reason"]) == (diagnosis.stage, diagnosis.summary)
        else:
            assert diagnosis.stage in {"Scheduled", "Finished", "Terminating"}, diagnosis.summary
        if diagnosis.queue is None:  # of a Job without a PodGroup, and of pods of other schedulers
            continue
        shown = (diagnosis.phase, diagnosis.scheduled, diagnosis.pods, diagnosis.min_available)
        assert (job["phase"], job["scheduled"], job["pods"], job["minAvailable"]) == shown
        if job["scheduled"] < job["pods"] and job["waitSeconds"] is not None:
            assert job["waitSeconds"] == int(diagnosis.waiting_seconds)
        session = cluster.core.snapshot().session
        assert session is not None
        if (
            session.results.bound or session.results.report.enqueued
        ):  # the figures of `explain` are those of the next session
            continue
        for limit in diagnosis.queue.limits:
            use = uses.get((limit.queue, limit.resource))
            if use is not None and "|" not in limit.resource:
                expected = (limit.quota, limit.used, limit.reserved)
                assert (use["quota"], use["allocated"], use["inqueue"]) == expected, (limit.queue, limit.resource)
                assert use["total"] == (limit.cluster_total or 0.0)
                if limit.queue == job["queue"]:
                    assert use["free"] == limit.usable
            elif use is None and limit.resource in resources.get(limit.queue, {}):
                quota, used = resources[limit.queue][limit.resource]
                assert (quota, used) == (_base(limit, limit.quota), _base(limit, limit.used)), limit.resource
            elif use is None:
                assert limit.used == 0, (limit.queue, limit.resource)
                # A limit that follows from the nodes has reservations; lists show those of cards only.
                assert limit.reserved == 0 or limit.resource in {CPU, MEMORY}, (limit.queue, limit.resource)


def _base(limit: LimitUse, amount: float | None) -> int | None:
    """An amount of `in_units` in base units."""
    return None if amount is None else round(amount / in_units(limit.resource, 1000) * 1000)


def _check_objects(found: LoadedCluster, jobs: list[dict[str, Any]], queues: list[dict[str, Any]]) -> None:
    """Statuses as the API server has them, and metrics."""
    phases = {
        (group["metadata"]["namespace"], group["metadata"]["name"]): (group.get("status") or {}).get("phase")
        for group in found.objects.all_of("PodGroup")
    }
    for job in jobs:
        if job["podGroup"]:
            assert job["phase"] == (phases[job["namespace"], job["podGroup"]] or "Pending")
    statuses = {queue["metadata"]["name"]: queue.get("status") or {} for queue in found.objects.all_of("Queue")}
    for queue in queues:
        allocated = statuses[queue["name"]].get("allocated") or {}
        for resource, (_, used) in queue["resources"].items():
            if resource == "cpu":
                assert amount(allocated.get("cpu", "0")) == in_units("cpu", used), queue["name"]
    figures = {
        (sample.labels["queue_name"], sample.labels["card"]): sample.value
        for sample in quota_samples(found.core.snapshot())
        if sample.name == "queue_card_allocated"
    }
    for queue in queues:
        for use in queue["cards"]:
            assert figures.get((queue["name"], use["card"]), 0.0) == use["allocated"]


def _check_cards(found: LoadedCluster, queues: list[dict[str, Any]]) -> None:
    cards, totals = Counter[str](), {row["name"]: row for row in card_totals(found)}
    nodes: Counter[str] = Counter()
    for card in read_cards(found):
        if card["sharedCards"] is None:
            cards[card["name"]] += card["used"]
            nodes[card["node"]] += card["used"]
    assert {name: row["used"] for name, row in totals.items()} == dict(cards)
    assert {row["name"]: row["used"] for row in read_nodes(found) if row["cards"] and nodes[row["name"]]} == +nodes
    for queue in queues:
        for use in queue["cards"]:
            if use["card"] in totals:
                assert use["total"] == totals[use["card"]]["total"]


def _check_tables(
    found: LoadedCluster,
    jobs: list[dict[str, Any]],
    queues: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The tables of `simulate` are those of the lists."""

    def lines(listing: Listing, items: list[dict[str, Any]]) -> str:
        Printer(listing, "table", all_namespaces=True).print_list(items)
        return capsys.readouterr().out

    capsys.readouterr()
    listed = lines(JOBS, jobs), lines(QUEUES._replace(remarks=lambda _: ()), QUEUES.arrange(queues))
    print_overview(found, 0.0, [])
    shown = capsys.readouterr().out
    for table in listed:
        assert table in shown
