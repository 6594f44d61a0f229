"""The overview: figures computed from objects, and their tables."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from capcard_sched.model.annotations import NODE_VGPU_REGISTER, VGPU_IDS
from capcard_sched.reports.overview import CardRow, EvictionRow, JobRow, Use, survey
from capcard_sched.reports.progress import ProgressBar, SimulationProgress
from capcard_sched.reports.tables import print_overview
from capcard_sched.reports.terminal import format_base_amount

START = 1_767_225_600


def obj(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "uid": f"{name}-uid", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"kind": kind, "metadata": {**metadata, **fields.pop("metadata", {})}, **fields}


def owned(kind: str, name: str) -> list[dict[str, Any]]:
    return [{"kind": kind, "name": name, "uid": f"{name}-uid", "controller": True}]


def member(name: str, at: str = "", message: str = "", **annotations: str) -> dict[str, Any]:
    condition: dict[str, Any] = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
    if not at:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    spec: dict[str, Any] = {"containers": [{"resources": {"requests": {"cpu": "2", "nvidia.com/gpu": "1"}}}]}
    if at:
        spec["nodeName"] = "n"
    notes = {"scheduling.k8s.io/group-name": "g", **annotations}
    status = {"phase": "Running" if at else "Pending", "conditions": [condition]}
    return obj("Pod", name, metadata={"annotations": notes}, spec=spec, status=status)


def group(minimum: int = 1, phase: str = "Pending", **status: Any) -> dict[str, Any]:
    return obj("PodGroup", "g", spec={"minMember": minimum, "queue": "q"}, status={"phase": phase, **status})


NODE = obj(
    "Node",
    "n",
    metadata={
        "labels": {"nvidia.com/gpu.product": "H200", "nvidia.com/gpu.count": "8", "nvidia.com/gpu.memory": "143771"}
    },
    status={"allocatable": {"cpu": "64", "nvidia.com/gpu": "8"}},
)


def job(*items: dict[str, Any], now: float = 60) -> JobRow:
    return survey(items, START + now, START).jobs[0]


def test_a_pending_gang_shows_its_progress_and_the_most_frequent_reason() -> None:
    pods = [
        member("a", "2026-01-01T00:00:05Z"),
        *(member(name, message="no node fits") for name in "bcd"),
        member("e", message="x"),
    ]
    assert job(group(5), *pods) == JobRow("ns", "g", "PodGroup", "q", "Pending", 1, 5, 5, 60.0, "no node fits")


def test_a_scheduled_gang_waited_until_its_minimum_was_scheduled() -> None:
    pods = [member(name, f"2026-01-01T00:00:{second:02}Z") for name, second in (("a", 5), ("b", 9), ("c", 30))]
    assert job(group(2, "Running"), *pods) == JobRow("ns", "g", "PodGroup", "q", "Running", 3, 3, 2, 9.0, "")


def unschedulable(status: str, message: str) -> dict[str, Any]:
    return group(conditions=[{"type": "Unschedulable", "status": status, "message": message}])


def warning(second: int) -> dict[str, Any]:
    about = {"kind": "PodGroup", "namespace": "ns", "name": "g"}
    fields = {"type": "Warning", "reason": "QueueNotFound", "message": f"m{second}"}
    return obj("Event", f"e{second}", involvedObject=about, lastTimestamp=f"2026-01-01T00:00:0{second}Z", **fields)


REASONS = [
    ("group without pods", [unschedulable("True", "over quota")], "over quota"),
    ("an old condition does not count", [unschedulable("False", "old")], ""),
    (
        "only the cause is shown",
        [group(), member("a", message="pod group is not ready, 1 Pending. Origin reason is a: 3 Insufficient cpu.")],
        "3 Insufficient cpu.",
    ),
    (
        "the last event, when there is nothing else",
        [group(), *map(warning, (2, 7, 5))],
        "m7",
    ),
]


@pytest.mark.parametrize("items, reason", [pytest.param(*case[1:], id=case[0]) for case in REASONS])
def test_the_one_reason_of_a_pending_job(items: list[dict[str, Any]], reason: str) -> None:
    assert job(*items).reason == reason


def test_a_group_is_called_after_the_workload_a_user_wrote() -> None:
    replica_set = obj("ReplicaSet", "web-abc", metadata={"ownerReferences": owned("Deployment", "web")})
    of_set = group() | {"metadata": group()["metadata"] | {"ownerReferences": owned("ReplicaSet", "web-abc")}}
    assert (job(of_set, replica_set).kind, job(of_set, replica_set).name) == ("Deployment", "web")
    of_job = group() | {"metadata": group()["metadata"] | {"ownerReferences": owned("Job", "train")}}
    assert (job(of_job).kind, job(of_job).name) == ("Job", "train")


def test_a_job_without_a_podgroup_is_shown() -> None:
    ended = obj(
        "Job", "j", spec={"tasks": [], "minAvailable": 1, "queue": "q"}, status={"state": {"phase": "Completed"}}
    )
    pod = member("j-0", "2026-01-01T00:00:07Z")
    pod["metadata"]["ownerReferences"] = owned("Job", "j")
    assert job(ended, pod) == JobRow("ns", "j", "Job", "q", "Completed", 1, 1, 1, 7.0, "")
    assert survey([obj("Job", "batch", spec={"template": {}})], START, START).jobs == ()


def queue(**fields: Any) -> dict[str, Any]:
    return obj("Queue", "q", status={"state": "Open"}, **fields)


def test_queues_show_each_card_against_its_quota() -> None:
    quota = {"annotations": {"volcano.sh/card.quota": '{"H200": 4, "A100": 2}'}}
    pods = [
        member("a", "2026-01-01T00:00:05Z", **{"volcano.sh/card.name": "H200"}),
        member(
            "b", "2026-01-01T00:00:05Z", **{"volcano.sh/card.name": "A100|H200", "volcano.sh/card.assigned": "H200"}
        ),
        member("waits", **{"volcano.sh/card.name": "H200"}),
    ]
    terminating = member("terminating", "2026-01-01T00:00:05Z", **{"volcano.sh/card.name": "H200"})
    terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    items = [NODE, group(), *pods, terminating, queue(metadata=quota, spec={"capability": {"cpu": "8"}})]
    overview = survey(items, START, START)
    assert overview.queues[0].uses == (
        Use("A100", "0", "2", 0.0),
        Use("H200", "3", "4", 0.75),
        Use("cpu", "6", "8", 0.75),
    )
    assert overview.cards == (CardRow("H200", 1, 8.0, 3.0, 5.0),)


def test_a_malformed_quota_shows_usage_without_a_limit() -> None:
    pods = [member("a", "2026-01-01T00:00:05Z", **{"volcano.sh/card.name": "H200"})]
    broken = queue(metadata={"annotations": {"volcano.sh/card.quota": "{"}})
    uses = survey([NODE, group(), *pods, broken], START, START).queues[0].uses
    assert uses == (Use("H200", "1", "-", None), Use("cpu", "2", "-", None))


def test_queues_show_the_shares_that_they_name_with_their_charges() -> None:
    memory, cores = "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"
    named = queue(spec={"capability": {memory: "4k", cores: "100", "nvidia.com/gpu": "8"}})
    named["status"]["allocated"] = {memory: "3k", "volcano.sh/vgpu-number": "3"}
    uses = survey([named], START, START).queues[0].uses
    assert uses == (Use(cores, "0", "100", 0.0), Use(memory, "3000", "4000", 0.75))
    renamed = survey([named], START, START, shares={"nvidia.com/gpu"}).queues[0].uses
    assert renamed == (Use("nvidia.com/gpu", "0", "8", 0.0),)


def test_tables_show_markup_as_text_and_leave_out_empty_columns() -> None:
    output = io.StringIO()
    waiting = member("a", message="[red]not markup[/red] <q> requested <4000>")
    evictions = [EvictionRow(90, "ns/b", "n", "reclaim")]
    print_overview(survey([group(), waiting], START + 60, START, evictions), Console(file=output, width=140))
    shown = output.getvalue()
    assert "[red]not markup[/red] <q> requested <4000>" in shown
    assert "1m30s" in shown
    assert "Queues" not in shown
    assert "Cards" not in shown
    assert "After 1m: 0/1 jobs reached minAvailable; 1 pod pending." in shown


@pytest.mark.parametrize("width, title", [(80, "Pending jobs"), (120, "Pending jobs"), (160, "REASON")])
def test_a_reason_takes_few_lines_on_any_terminal(width: int, title: str) -> None:
    message = (
        "Queue <online> has insufficient <NVIDIA-GeForce-RTX-4090> quota: requested <4000>, total would be <12000>, "
        "but capability is <8000>"
    )
    output = io.StringIO()
    print_overview(survey([group(), member("a", message=message)], START, START), Console(file=output, width=width))
    lines = output.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert sum(title in line for line in lines) == 1
    first = next(number for number, line in enumerate(lines) if "Queue <online>" in line)
    last = next(number for number, line in enumerate(lines) if "<8000>" in line)
    assert last - first < 3


def test_of_many_jobs_those_that_wait_longest_are_shown() -> None:
    def one(number: int, stamp: str) -> dict[str, Any]:
        found = obj("PodGroup", f"g{number}", spec={"minMember": number % 2}, status={"phase": "Pending"})
        found["metadata"]["creationTimestamp"] = stamp
        return found

    groups = [one(number, f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z") for number in range(250)]
    output = io.StringIO()
    print_overview(survey(groups, START + 600, START), Console(file=output, width=140))
    shown = output.getvalue()
    assert "podgroup/g1 " in shown
    assert "podgroup/g199 " in shown
    assert "podgroup/g201 " not in shown
    assert "podgroup/g0 " not in shown
    assert "... and 150 more jobs" in shown


def test_an_empty_cluster_is_one_line() -> None:
    output = io.StringIO()
    print_overview(survey([], START, START), Console(file=output))
    assert output.getvalue() == "After 0s: 0/0 jobs reached minAvailable; 0 pods pending.\n"


@pytest.mark.parametrize(
    "resource, amount, text",
    [
        pytest.param("cpu", 1500, "1.5", id="half a core"),
        pytest.param("cpu", 1_234_567, "1234.567", id="more than six digits"),
        pytest.param("NVIDIA-H200", 2_000_000_000, "2000000", id="many cards without an exponent"),
        pytest.param("memory", 2**41, "2048Gi", id="2 TiB"),
        pytest.param("memory", 3 * 2**40 + 2**20, "3145729Mi", id="not whole inGi"),
        pytest.param("memory", 0, "0Gi", id="nothing"),
        pytest.param("ephemeral-storage", 2**30, "1Gi", id="all that is counted in bytes"),
        pytest.param("pods", 110, "110", id="pods are plain"),
    ],
)
def test_amounts_are_in_the_unit_of_their_resource(resource: str, amount: int, text: str) -> None:
    assert format_base_amount(resource, amount) == text


def test_short_runs_draw_no_bar_and_long_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = [0.0]
    monkeypatch.setattr("capcard_sched.reports.progress.time.monotonic", lambda: wall[0])
    output = io.StringIO()
    progress = SimulationProgress(Console(file=output, force_terminal=True, width=100))
    progress.update(1, 2)
    assert output.getvalue() == ""
    wall[0] = 1.5
    progress.update(3_600_000_000, 7_200_000_000)
    progress.close()
    assert "1h of 2h, 40m/s, 1s left" in output.getvalue()


def test_a_bar_shows_a_rate_and_the_time_that_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = [0.0]
    monkeypatch.setattr("capcard_sched.reports.progress.time.monotonic", lambda: wall[0])
    output = io.StringIO()
    progress = ProgressBar("trials", Console(file=output, force_terminal=True, width=120))
    for number in range(1, 9):
        wall[0] = number * 0.5
        progress.update(number, 80)
    progress.close()
    assert "8 of at most 80, 2.0/s, 36s left" in output.getvalue()


def test_queues_show_cards_by_node_for_any_annotations_of_the_pods() -> None:
    quota = {"annotations": {"volcano.sh/card.quota": '{"H200": 4}'}}
    pods = [
        member("renamed", "2026-01-01T00:00:05Z", **{"volcano.sh/card.name": "A100"}),
        member("forged", "2026-01-01T00:00:05Z", **{"volcano.sh/card.assigned": "A100"}),
        member("unnamed", "2026-01-01T00:00:05Z"),
    ]
    rows = survey([NODE, queue(metadata=quota), group(), *pods], START, START).queues
    assert rows[0].uses[0] == Use("H200", "3", "4", 0.75)


# --- shared cards ---------------------------------------------------------------------------------------------------

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


def share_rows(*items: dict[str, Any]) -> list[tuple[str, int, int, int, int, list[str]]]:
    return [
        (row.node, row.gpu, row.shares, row.memory, row.cores, [tenant.pod for tenant in row.tenants])
        for row in survey(items, 0, 0).shared_cards
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
    out = io.StringIO()
    pods = [sharing("one", "A,NVIDIA,500,10:"), sharing("two", "A,NVIDIA,250,0:M[group2-3],NVIDIA,3000,0:")]

    print_overview(survey([shared_node("n1", CARDS), *pods], 0, 0), Console(file=out, width=120))

    words = " ".join(out.getvalue().split())
    assert "n1 0 2/10 750/1000 10% ██████████▓▓▓▓▓░░░░░ one 500, two 250 1 1/4 3000/40536 0%" in words
    assert "two 3000 [group2-3]" in out.getvalue()
