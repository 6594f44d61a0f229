"""The timeline of a run: cards in use, waiting times, jobs blocked by quota, evictions; and how it is printed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from capcard_sched.model.deltas import BindFailed, Delta, EvictFailed, ObjectChanged, ObjectGone
from capcard_sched.model.intents import Bind, Evict, Intent, ObjectRef
from capcard_sched.model.objects import NodeObject, PodGroupObject, PodObject
from capcard_sched.model.refusal import Figures, Refusal
from capcard_sched.reports.recording import EvictionRecord, Recorder
from capcard_sched.reports.timeline import (
    QueueWaits,
    QuotaWaits,
    ServiceUse,
    TimeBucket,
    Timeline,
    timeline_lines,
    timeline_of,
)
from tests.scenarios.notation import manifests

H200, H100 = "NVIDIA-H200", "NVIDIA-H100"
TYPES: dict[str, Any] = {"Node": NodeObject, "PodGroup": PodGroupObject, "Pod": PodObject}


def deltas(text: str) -> list[Delta]:
    """Changes in the notation of the scenarios, and `gone KIND NAME`. A pod `x` is of the job `job-x`."""
    found: list[Delta] = []
    for statement in filter(None, map(str.strip, text.split(";"))):
        words = statement.split()
        if words[0] == "gone":
            found.append(ObjectGone(words[1], "" if words[1] == "Node" else "default", words[2]))
            continue
        (body,) = manifests(f"{statement} group=job-{words[1]}" if words[0] == "pod" else statement)
        body["metadata"].setdefault("uid", f"uid-{words[1]}")
        if body["kind"] != "Node":
            body["metadata"]["namespace"] = "default"
        found.append(ObjectChanged(msgspec.convert(body, TYPES[body["kind"]])))
    return found


def result(text: str) -> tuple[list[Intent], list[tuple[ObjectRef, Refusal]]]:
    """What a session decided: `bind POD NODE [CARD]`, `evict POD NODE REASON`, `refuse [pod/]JOB CARD LIMIT`."""
    intents: list[Intent] = []
    refusals: list[tuple[ObjectRef, Refusal]] = []
    for words in (statement.split(None, 3) for statement in filter(None, text.split(";"))):
        match words:
            case ["bind", pod, node, *card]:
                notes = {"volcano.sh/card.assigned": card[0]} if card else {}
                intents.append(Bind("default", pod, f"uid-{pod}", node, notes))
            case ["evict", pod, node, message]:
                intents.append(Evict("default", pod, f"uid-{pod}", "reclaim", message, node))
            case ["refuse", name, card, limit]:
                refusals.append(refuse(name, card, int(limit)))
    return intents, refusals


def refuse(name: str, card: str, limit: int) -> tuple[ObjectRef, Refusal]:
    figures = Figures(card, 1000, limit + 1000, limit)
    refusal = Refusal("job_enqueueable", "capacity-card", "InsufficientScalarQuota", "no", queue="q", figures=figures)
    kind, slash, pod = name.partition("/")
    if slash:
        return ObjectRef("Pod", "default", pod, f"uid-{pod}"), refusal
    return ObjectRef("PodGroup", "default", kind), refusal


def recorded(text: str, *more: tuple[int, Delta]) -> Recorder:
    """A run of lines `TIME CHANGES -> DECISIONS`; `more` deltas come with the lines of these numbers."""
    recorder = Recorder()
    for number, line in enumerate(text.strip().splitlines()):
        row, _, decided = line.partition("->")
        at, _, changes = row.strip().partition(" ")
        found = [*deltas(changes), *(delta for of, delta in more if of == number)]
        recorder.record(found, float(at), *result(decided))
    return recorder


NODES = f"node a 8*{H200}; node b 4*{H100}"
X4 = f"pod x gpu=4 card={H200}"


def test_use_is_averaged_over_time_and_peaks_are_kept() -> None:
    timeline = timeline_of(
        recorded(f"""
            0 {NODES}; group job-x queue=q; {X4}; pod y gpu=2 card={H200} -> bind x a
            10 -> bind y a
            15 {X4} nodeName=a status={{phase: Succeeded}}
            20 gone Pod y
            40"""),
        buckets=4,
    )
    assert timeline.buckets == [
        TimeBucket(0.0, 10.0, {H200: 4.0}, {H200: 4}),
        TimeBucket(10.0, 20.0, {H200: 4.0}, {H200: 6}),
        TimeBucket(20.0, 30.0, {H200: 0.0}, {H200: 0}),
        TimeBucket(30.0, 40.0, {H200: 0.0}, {H200: 0}),
    ]
    assert timeline.cards == {H200: 8, H100: 4}


def test_cards_of_all_types_have_a_peak_together() -> None:
    run = recorded(f"""
        0 {NODES}; {X4}; pod y gpu=2 card={H100} -> bind x a
        10 {X4} nodeName=a status={{phase: Succeeded}} -> bind y b
        20""")
    assert timeline_of(run, buckets=1).total == [(3.0, 4)]


def test_a_shared_card_is_in_use_while_a_pod_has_a_share_of_it() -> None:
    def node(text: str) -> str:
        return f"node s annotations={{volcano.sh/node-vgpu-register: '{text}'}}"

    def taken(name: str, devices: str) -> Bind:
        return Bind("default", name, f"uid-{name}", "s", {"volcano.sh/vgpu-ids-new": devices})

    first: list[Intent] = [taken("x", "A,NVIDIA,10,0:;A,NVIDIA,10,0:"), taken("y", "A,NVIDIA,10,0:B,NVIDIA,10,0:")]
    registered = "A,10,100,L40S,true,hami-core:B,10,100,L40S,true,hami-core:"
    recorder = Recorder()
    recorder.record(deltas(f"{node(registered)}; pod x; pod y; pod z"), 0.0, first, ())
    second = deltas("pod y nodeName=s status={phase: Succeeded}")
    recorder.record(second, 10.0, [taken("z", "none,NVIDIA,1,0:")], ())
    recorder.record(deltas(f"gone Pod x; {node(registered[:29])}"), 20.0, (), ())
    recorder.record((), 30.0, (), ())
    assert recorder.use == {"L40S": [(0.0, 2), (10.0, 1), (20.0, 0)]}
    assert timeline_of(recorder).cards == {"L40S": 1}


#: A run, and the changes of the cards in use as (time, cards).
USE = {
    "of a choice the card that the binding names counts": (
        f"1 {NODES}; pod x gpu=2 card={H200}|{H100} -> bind x b {H100}", {H100: [(1.0, 2)]}),
    "else the first of a choice that the node offers": (
        f"1 {NODES}; pod x gpu=2 card={H200}|{H100} -> bind x b", {H100: [(1.0, 2)]}),
    "an unknown node offers nothing": (f"1 {NODES}; pod x gpu=2 card={H200}|{H100} -> bind x gone", {}),
    "pods that run from the start hold cards": (f"0 {NODES}; {X4} nodeName=a status={{phase: Running}}",
                                                {H200: [(0.0, 4)]}),
}  # fmt: skip


@pytest.mark.parametrize("run, expected", USE.values(), ids=USE)
def test_the_use_of_cards_follows_bindings_and_nodes(run: str, expected: dict[str, Any]) -> None:
    assert recorded(run).use == expected


def test_a_failed_binding_returns_the_cards_and_the_wait_continues() -> None:
    run = f"0 {NODES}; group job-x queue=q; {X4} -> bind x a\n1\n9 -> bind x a\n10 {X4} nodeName=a"
    recorder = recorded(run, (1, BindFailed("default", "x", "uid-x", "gone")))
    assert recorder.use[H200] == [(0.0, 4), (1.0, 0), (9.0, 4)]
    assert timeline_of(recorder).waits[0].longest == 9.0


#: A run, and queue, pods, those that wait at its end, mean and longest wait.
WAITS = {
    "pods that run from the start did not wait": (
        f"0 {NODES}; group job-x queue=q; {X4} nodeName=a status={{phase: Running}}", [("q", 1, 0, 0.0, 0.0)]),
    "several queues have a row together": (
        f"""0 {NODES}; group job-x queue=a; group job-y queue=b; pod x; pod y -> bind x a
            4 -> bind y a
            10""", [("a", 1, 0, 0.0, 0.0), ("b", 1, 0, 4.0, 4.0), ("", 2, 0, 2.0, 4.0)]),
    "a pod that is deleted while it waits is no measured wait": ("0 group job-x queue=q; pod x\n5 gone Pod x", []),
}  # fmt: skip


@pytest.mark.parametrize("run, expected", WAITS.values(), ids=WAITS)
def test_waits_are_counted_per_queue(run: str, expected: list[Any]) -> None:
    found = timeline_of(recorded(run)).waits
    assert [(wait.queue, wait.pods, wait.pending, wait.mean, wait.longest) for wait in found] == expected


def test_waits_are_summed_up_per_queue() -> None:
    groups = "; ".join(f"group job-{name} queue=q; pod {name}" for name in "xyz")
    run = f"0 {NODES}; {groups} -> bind x a\n4 -> bind y a\n10"
    assert timeline_of(recorded(run)).waits == [QueueWaits("q", 3, 1, 14 / 3, 4.0, 10.0, 10.0, 10.0, "default/z")]


def test_waits_last_until_the_end_of_the_run() -> None:
    recorder = recorded(f"0 {NODES}; group job-x queue=q; pod x\n4")
    recorder.finish(600.0)
    summary = timeline_of(recorder)
    assert (summary.seconds, summary.waits[0].longest) == (600.0, 600.0)
    recorder.finish(5.0)
    assert timeline_of(recorder).seconds == 600.0


def test_a_quota_blocks_a_job_from_the_refusal_to_the_placement() -> None:
    groups = "; ".join(f"group job-{name} queue=q; pod {name} gpu=1 card={H200}" for name in "xyz")
    run = recorded(f"""
        0 {NODES}; {groups}
        1 -> refuse job-x {H200} 2000;refuse pod/y {H200} 2000;refuse job-z {H100} 0
        2 -> refuse pod/y {H200} 3000
        6 -> bind y a
        11 gone Pod z
        21""")
    assert timeline_of(run).quota_waits == [
        QuotaWaits("q", H200, 3000, 2, 1, 25.0, 20.0, "default/x"),
        QuotaWaits("q", H100, 0, 1, 0, 10.0, 10.0, "default/job-z"),
    ]


def test_a_service_is_named_by_the_common_prefix_of_its_pods() -> None:
    pods = deltas("pod chat-5d-a; pod chat-5d-b")
    for change in pods:
        change.object.metadata.annotations["scheduling.k8s.io/group-name"] = "podgroup-7"  # type: ignore[union-attr,index]
    run = recorded(f"0 -> refuse podgroup-7 {H200} 2000\n5", *((0, pod) for pod in pods))
    assert [hold.longest_job for hold in timeline_of(run).quota_waits] == ["default/chat-5d-*"]


def test_totals_follow_the_nodes() -> None:
    assert timeline_of(recorded(f"0 {NODES}\n1 node a 6*{H200}; gone Node b")).cards == {H200: 6}


def test_cards_are_summed_up_by_service_type_in_card_hours_and_over_time() -> None:
    """A pod counts for its service type until it is deleted: a terminating pod still has its cards."""
    kinds = {"t": ("train", "training"), "i": ("serve", "inference"), "u": ("serve", "batch")}
    groups = "; ".join(
        f"group job-{name} queue={queue} annotations=volcano.sh/service.type:{kind}"
        for name, (queue, kind) in kinds.items()
    )
    waiting = f"pod i gpu=2 card={H200}; pod u gpu=1 card={H100}"
    run = recorded(f"""
        0 {NODES}; pod t gpu=4 card={H200} nodeName=a; {groups}; {waiting} -> bind u b
        1800 -> evict t a reclaim: more
        3600 gone Pod t -> bind i a
        7200""")
    assert timeline_of(run, buckets=2).services == [
        ServiceUse("inference", H200, 2.0, [0.0, 2.0]),
        ServiceUse("training", H200, 4.0, [4.0, 0.0]),
        ServiceUse("", H100, 2.0, [1.0, 1.0]),
    ]
    assert timeline_of(recorded(f"0 {NODES}; group job-x queue=q; {X4} nodeName=a\n9")).services == []


def test_evictions_are_listed_with_their_cards_and_reason() -> None:
    run = recorded(f"""
        5 {NODES}; group job-x queue=q; {X4} nodeName=a status={{phase: Running}}; pod y nodeName=b
        9 -> evict x a reclaim: {H200}: 3 for ns/r;evict y b preempt""")
    assert timeline_of(run).evictions == [
        EvictionRecord(4.0, "default/x", "q", "a", H200, 4, f"reclaim: {H200}: 3 for ns/r", "uid-x"),
        EvictionRecord(4.0, "default/y", "", "b", "", 0, "preempt", "uid-y"),
    ]


def test_an_eviction_that_was_refused_did_not_happen() -> None:
    first = f"0 {NODES}; group job-x queue=q; {X4} nodeName=a status={{phase: Running}} -> evict x a first"
    refused = (1, EvictFailed("default", "x", "uid-x", "no"))
    run = recorded(f"{first}\n1\n2 -> evict x a second", refused, refused)
    assert [one.message for one in timeline_of(run).evictions] == ["second"]


def test_an_empty_run_is_three_sentences() -> None:
    assert timeline_lines(timeline_of(Recorder())) == [
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
    text = "\n".join(timeline_lines(timeline))
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
        evictions=[EvictionRecord(3600.0, "ml/t-0", "train", "n1", H200, 4, "reclaim: [bold] for ml/chat", "")] * 51,
    )
    text = "\n".join(timeline_lines(timeline))
    for expected in (
        "Cards by service type", f"inference: {H200}", f"neither: {H200}", "card-hours", "2.0", "4.0",
        "Evictions", "1h", "ml/t-0", "train", f"4 {H200} on n1", "reclaim: [bold] for ml/chat", "and 1 more",
    ):  # fmt: skip
        assert expected in text
