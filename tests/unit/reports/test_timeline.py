"""The recorder around a scripted core, and the summary of its records."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from rich.console import Console

from capcard_sched.model.deltas import BindFailed, Delta, EvictFailed, ObjectChanged, ObjectGone
from capcard_sched.model.intents import Bind, Evict, Intent, ObjectRef
from capcard_sched.model.objects import (
    Container,
    NodeObject,
    NodeStatus,
    ObjectMeta,
    PodGroupObject,
    PodGroupSpec,
    PodObject,
    PodSpec,
    PodStatus,
    RawAmounts,
    ResourceRequirements,
)
from capcard_sched.model.refusal import Figures, Refusal
from capcard_sched.reports.recording import Recorder
from capcard_sched.reports.timeline import (
    EvictionEntry,
    QueueWaits,
    QuotaWaits,
    ServiceUse,
    TimeBucket,
    Timeline,
    render,
    timeline_of,
)

H200, H100 = "NVIDIA-H200", "NVIDIA-H100"


@dataclass
class Report:
    refusals: list[tuple[ObjectRef, Refusal]] = field(default_factory=list)


@dataclass
class Result:
    intents: list[Intent] = field(default_factory=list)
    report: Report = field(default_factory=Report)


class Script:
    """A core that returns the given results in order, then empty ones."""

    def __init__(self, *results: Result) -> None:
        self._results = list(results)
        self.seen: list[tuple[int, float]] = []

    def step(self, deltas: Sequence[Delta], now: float) -> Result:
        self.seen.append((len(deltas), now))
        return self._results.pop(0) if self._results else Result()


def node(name: str, card: str, count: int) -> ObjectChanged:
    labels = {"nvidia.com/gpu.product": card, "nvidia.com/gpu.memory": "81920"}
    amounts: RawAmounts = {"cpu": "8", "nvidia.com/gpu": str(count)}
    return ObjectChanged(NodeObject(ObjectMeta(name=name, labels=labels), status=NodeStatus(allocatable=amounts)))


def group(name: str, queue: str, service: str = "") -> ObjectChanged:
    notes = {"volcano.sh/service.type": service} if service else None
    meta = ObjectMeta(name=name, namespace="default", annotations=notes)
    return ObjectChanged(PodGroupObject(meta, PodGroupSpec(queue=queue)))


def pod(name: str, card: str = "", cards: int = 1, on: str | None = None, phase: str = "Pending") -> ObjectChanged:
    notes = {"scheduling.k8s.io/group-name": f"job-{name}"} | ({"volcano.sh/card.name": card} if card else {})
    limits: RawAmounts | None = {"nvidia.com/gpu": str(cards)} if card else None
    return ObjectChanged(
        PodObject(
            ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", annotations=notes),
            PodSpec(node_name=on, containers=(Container(resources=ResourceRequirements(limits=limits)),)),
            PodStatus(phase=phase),
        )
    )


def bind(name: str, to: str, card: str = "") -> Bind:
    return Bind("default", name, f"uid-{name}", to, {"volcano.sh/card.assigned": card} if card else {})


def evict(name: str, message: str, on: str = "a") -> Evict:
    return Evict("default", name, f"uid-{name}", "reclaim", message, on)


def refuse(name: str, card: str, limit: int, kind: str = "PodGroup") -> tuple[ObjectRef, Refusal]:
    figures = Figures(card, 1000, limit + 1000, limit)
    refusal = Refusal("job_enqueueable", "capacity-card", "InsufficientScalarQuota", "no", queue="q", figures=figures)
    if kind == "Pod":
        return ObjectRef("Pod", "default", name, f"uid-{name}"), refusal
    return ObjectRef("PodGroup", "default", f"job-{name}"), refusal


def recorded(*steps: tuple[float, Sequence[Delta], Result]) -> Recorder[Result]:
    recorder = Recorder(Script(*(result for _, _, result in steps)))
    for now, deltas, _ in steps:
        recorder.step(deltas, now)
    return recorder


NODES = (node("a", H200, 8), node("b", H100, 4))


def test_the_core_gets_every_delta_and_its_result_comes_back() -> None:
    answer = Result([bind("p", "a")])
    script = Script(answer)
    assert Recorder(script).step([pod("p")], 5.0) is answer
    assert script.seen == [(1, 5.0)]


def test_use_is_averaged_over_time_and_peaks_are_kept() -> None:
    recorder = recorded(
        (0.0, [*NODES, group("job-x", "q"), pod("x", H200, 4), pod("y", H200, 2)], Result([bind("x", "a")])),
        (10.0, [], Result([bind("y", "a")])),
        (15.0, [pod("x", H200, 4, on="a", phase="Succeeded")], Result()),
        (20.0, [ObjectGone("Pod", "default", "y", "uid-y")], Result()),
        (40.0, [], Result()),
    )
    timeline = timeline_of(recorder, buckets=4)
    assert timeline.buckets == [
        TimeBucket(0.0, 10.0, {H200: 4.0}, {H200: 4}),
        TimeBucket(10.0, 20.0, {H200: 4.0}, {H200: 6}),
        TimeBucket(20.0, 30.0, {H200: 0.0}, {H200: 0}),
        TimeBucket(30.0, 40.0, {H200: 0.0}, {H200: 0}),
    ]
    assert timeline.cards == {H200: 8, H100: 4}


def test_cards_of_all_types_have_a_peak_together() -> None:
    recorder = recorded(
        (0.0, [*NODES, pod("x", H200, 4), pod("y", H100, 2)], Result([bind("x", "a")])),
        (10.0, [pod("x", H200, 4, on="a", phase="Succeeded")], Result([bind("y", "b")])),
        (20.0, [], Result()),
    )
    assert timeline_of(recorder, buckets=1).total == [(3.0, 4)]


def test_a_shared_card_is_in_use_while_a_pod_has_a_share_of_it() -> None:
    registered = "A,10,100,L40S,true,hami-core:B,10,100,L40S,true,hami-core:"

    def shared(text: str) -> ObjectChanged:
        notes = {"volcano.sh/node-vgpu-register": text}
        return ObjectChanged(NodeObject(ObjectMeta(name="s", annotations=notes)))

    def taken(name: str, devices: str) -> Bind:
        return Bind("default", name, f"uid-{name}", "s", {"volcano.sh/vgpu-ids-new": devices})

    first: list[Intent] = [taken("x", "A,NVIDIA,10,0:;A,NVIDIA,10,0:"), taken("y", "A,NVIDIA,10,0:B,NVIDIA,10,0:")]
    recorder = recorded(
        (0.0, [shared(registered), pod("x"), pod("y"), pod("z")], Result(first)),
        (10.0, [pod("y", on="s", phase="Succeeded")], Result([taken("z", "none,NVIDIA,1,0:")])),
        (20.0, [ObjectGone("Pod", "default", "x", "uid-x"), shared(registered[:29])], Result()),
        (30.0, [], Result()),
    )
    assert recorder.use == {"L40S": [(0.0, 2), (10.0, 1), (20.0, 0)]}
    assert timeline_of(recorder).cards == {"L40S": 1}


@pytest.mark.parametrize(
    ("assigned", "to", "expected"),
    [
        pytest.param(H100, "b", {H100: [(1.0, 2)]}, id="the card that the binding names"),
        pytest.param("", "b", {H100: [(1.0, 2)]}, id="else the first that the node offers"),
        pytest.param("", "gone", {}, id="an unknown node offers nothing"),
    ],
)
def test_a_choice_of_cards_counts_for_the_one_taken(
    assigned: str, to: str, expected: dict[str, list[tuple[float, int]]]
) -> None:
    result = Result([bind("x", to, assigned)])
    recorder = recorded((1.0, [*NODES, pod("x", f"{H200}|{H100}", 2)], result))
    assert recorder.use == expected


def test_a_failed_binding_returns_the_cards_and_the_wait_continues() -> None:
    recorder = recorded(
        (0.0, [*NODES, group("job-x", "q"), pod("x", H200)], Result([bind("x", "a")])),
        (1.0, [BindFailed("default", "x", "uid-x", "gone")], Result()),
        (9.0, [], Result([bind("x", "a")])),
        (10.0, [pod("x", H200, on="a", phase="Running")], Result()),
    )
    assert recorder.use[H200] == [(0.0, 1), (1.0, 0), (9.0, 1)]
    assert timeline_of(recorder).waits[0].longest == 9.0


def test_pods_that_run_from_the_start_hold_cards_without_having_waited() -> None:
    recorder = recorded((0.0, [*NODES, group("job-x", "q"), pod("x", H200, 3, on="a", phase="Running")], Result()))
    assert recorder.use == {H200: [(0.0, 3)]}
    assert timeline_of(recorder).waits[0].longest == 0.0


def test_waits_are_summed_up_per_queue() -> None:
    deltas: list[Delta] = [*NODES, *(group(f"job-{name}", "q") for name in "xyz"), *(pod(name) for name in "xyz")]
    recorder = recorded(
        (0.0, deltas, Result([bind("x", "a")])), (4.0, [], Result([bind("y", "a")])), (10.0, [], Result())
    )
    assert timeline_of(recorder).waits == [QueueWaits("q", 3, 1, 14 / 3, 4.0, 10.0, 10.0, 10.0, "default/z")]


def test_several_queues_have_a_row_together() -> None:
    deltas: list[Delta] = [*NODES, group("job-x", "a"), group("job-y", "b"), pod("x"), pod("y")]
    recorder = recorded(
        (0.0, deltas, Result([bind("x", "a")])), (4.0, [], Result([bind("y", "a")])), (10.0, [], Result())
    )
    assert [(wait.queue, wait.pods, wait.mean) for wait in timeline_of(recorder).waits] == [
        ("a", 1, 0.0),
        ("b", 1, 4.0),
        ("", 2, 2.0),
    ]


def test_waits_last_until_the_end_of_the_run() -> None:
    deltas: list[Delta] = [*NODES, group("job-x", "q"), pod("x")]
    recorder = recorded((0.0, deltas, Result()), (4.0, [], Result()))
    recorder.finish(600.0)
    summary = timeline_of(recorder)
    assert (summary.seconds, summary.waits[0].longest) == (600.0, 600.0)
    recorder.finish(5.0)
    assert timeline_of(recorder).seconds == 600.0


def test_a_pod_deleted_while_it_waited_is_no_measured_wait() -> None:
    recorder = recorded(
        (0.0, [group("job-x", "q"), pod("x")], Result()), (5.0, [ObjectGone("Pod", "default", "x")], Result())
    )
    assert timeline_of(recorder).waits == []


def test_a_quota_blocks_a_job_from_the_refusal_to_the_placement() -> None:
    deltas: list[Delta] = [*NODES, *(group(f"job-{name}", "q") for name in "xyz"), *(pod(name, H200) for name in "xyz")]
    refusals = Report([refuse("x", H200, 2000), refuse("y", H200, 2000, "Pod"), refuse("z", H100, 0)])
    recorder = recorded(
        (0.0, deltas, Result()),
        (1.0, [], Result([], refusals)),
        (2.0, [], Result([], Report([refuse("y", H200, 3000, "Pod")]))),
        (6.0, [], Result([bind("y", "a")])),
        (11.0, [ObjectGone("Pod", "default", "z", "uid-z")], Result()),
        (21.0, [], Result()),
    )
    assert timeline_of(recorder).quota_waits == [
        QuotaWaits("q", H200, 3000, 2, 1, 25.0, 20.0, "default/x"),
        QuotaWaits("q", H100, 0, 1, 0, 10.0, 10.0, "default/job-z"),
    ]


def test_a_service_is_named_by_the_common_prefix_of_its_pods() -> None:
    pods = [pod(f"chat-5d-{name}", H200) for name in "ab"]
    for change in pods:
        change.object.metadata.annotations["scheduling.k8s.io/group-name"] = "podgroup-7"  # type: ignore[index]
    refusals = [(ObjectRef("PodGroup", "default", "podgroup-7"), refuse("x", H200, 2000)[1])]
    recorder = recorded((0.0, [*NODES, *pods], Result([], Report(refusals))), (5.0, [], Result()))
    assert [hold.longest_job for hold in timeline_of(recorder).quota_waits] == ["default/chat-5d-*"]


def test_totals_follow_the_nodes() -> None:
    recorder = recorded((0.0, [*NODES], Result()), (1.0, [node("a", H200, 6), ObjectGone("Node", "", "b")], Result()))
    assert timeline_of(recorder).cards == {H200: 6}


def test_cards_are_summed_up_by_service_type_in_card_hours_and_over_time() -> None:
    """A pod counts for its service type until it is deleted: a terminating pod still has its cards."""
    recorder = recorded(
        (
            0.0,
            [
                *NODES,
                pod("t", H200, 4, on="a", phase="Running"),
                group("job-t", "train", "training"),
                group("job-i", "serve", "inference"),
                group("job-u", "serve", "batch"),
                *(pod("i", H200, 2), pod("u", H100, 1)),
            ],
            Result([bind("u", "b")]),
        ),
        (1800.0, [], Result([evict("t", "reclaim: more")])),
        (3600.0, [ObjectGone("Pod", "default", "t", "uid-t")], Result([bind("i", "a")])),
        (7200.0, [], Result()),
    )
    assert timeline_of(recorder, buckets=2).services == [
        ServiceUse("inference", H200, 2.0, [0.0, 2.0]),
        ServiceUse("training", H200, 4.0, [4.0, 0.0]),
        ServiceUse("", H100, 2.0, [1.0, 1.0]),
    ]


def test_without_a_service_type_there_is_no_sum_by_type() -> None:
    recorder = recorded((0.0, [*NODES, group("job-x", "q"), pod("x", H200, 3, on="a")], Result()), (9.0, [], Result()))
    assert timeline_of(recorder).services == []


def test_evictions_are_listed_with_their_cards_and_reason() -> None:
    deltas: list[Delta] = [*NODES, group("job-x", "q"), pod("x", H200, 3, on="a", phase="Running"), pod("y", on="b")]
    recorder = recorded(
        (5.0, deltas, Result()),
        (9.0, [], Result([evict("x", "reclaim: NVIDIA-H200: 3 for ns/r"), evict("y", "preempt", "b")])),
    )
    assert timeline_of(recorder).evictions == [
        EvictionEntry(4.0, "default/x", "q", "a", H200, 3, "reclaim: NVIDIA-H200: 3 for ns/r"),
        EvictionEntry(4.0, "default/y", "", "b", "", 0, "preempt"),
    ]


def test_an_eviction_that_was_refused_did_not_happen() -> None:
    deltas: list[Delta] = [*NODES, group("job-x", "q"), pod("x", H200, 3, on="a", phase="Running")]
    recorder = recorded(
        (0.0, deltas, Result([evict("x", "first")])),
        (1.0, [EvictFailed("default", "x", "uid-x", "no"), EvictFailed("default", "x", "uid-x", "no")], Result()),
        (2.0, [], Result([evict("x", "second")])),
    )
    assert [one.message for one in timeline_of(recorder).evictions] == ["second"]


def test_an_empty_run_is_three_sentences() -> None:
    console = Console(record=True, width=120)
    console.print(render(timeline_of(Recorder(Script()))))
    assert console.export_text().splitlines() == [
        "No card was in use.",
        "No pod waited for a node.",
        "No job was blocked by quota.",
    ]


def test_tables_show_figures_in_readable_units() -> None:
    timeline = Timeline(
        seconds=86_400.0,
        cards={H200: 8},
        buckets=[TimeBucket(3600.0, 86_400.0, {H200: 2.26}, {H200: 5})],
        waits=[QueueWaits("q", 12, 1, 0.4, 0.0, 65.0, 75.0, 90_000.0, "default/z")],
        quota_waits=[QuotaWaits("q", H200, 2000, 7, 1, 7200.0, 3600.0, "default/job-x")] * 21,
    )
    console = Console(record=True, width=120)
    console.print(render(timeline))
    text = console.export_text()
    for expected in ("NVIDIA-H200 of 8", "1h", "2.3 (5)", "1m5s", "1m15s", "1d1h", "default/job-x", "2h", "and 1 more"):
        assert expected in text


def test_service_types_and_evictions_have_tables_of_their_own() -> None:
    timeline = Timeline(
        seconds=7200.0,
        cards={H200: 8},
        buckets=[TimeBucket(0.0, 3600.0, {H200: 4.0}, {H200: 4}), TimeBucket(3600.0, 7200.0, {H200: 2.0}, {H200: 4})],
        waits=[],
        quota_waits=[],
        services=[ServiceUse("inference", H200, 2.04, [0.0, 2.0]), ServiceUse("", H200, 4.0, [4.0, 0.0])],
        evictions=[EvictionEntry(3600.0, "ml/t-0", "train", "n1", H200, 4, "reclaim: [bold] for ml/chat")] * 51,
    )
    console = Console(record=True, width=160)
    console.print(render(timeline))
    text = console.export_text()
    for expected in (
        "Cards by service type", f"inference: {H200}", f"neither: {H200}", "card-hours", "2.0", "4.0",
        "Evictions", "1h", "ml/t-0", "train", f"4 {H200} on n1", "reclaim: [bold] for ml/chat", "and 1 more",
    ):  # fmt: skip
        assert expected in text
