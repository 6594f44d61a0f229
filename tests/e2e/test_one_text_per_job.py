"""`explain` gives one text about a job: from manifests, of a live cluster, with a cache, and from a snapshot of it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.simulation.clock import SECOND
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest, queue
from tests.e2e.asking import LiveCommand
from tests.e2e.test_cache import Shell
from tests.insight.oracle_clusters import Cluster as Statements
from tests.insight.oracle_world import World, simulated
from tests.insight.test_causes import DATA, written
from tests.insight.test_live_situations import create_as_they_are, create_events, objects_of
from tests.insight.test_situations import CASES, HERE
from tests.scenarios.notation import expanded

CARD = "NVIDIA-H200"
#: Jobs of each kind, running and waiting for each other, for quotas, nodes, gates, members, queues and schedulers.
STATEMENTS = Statements(
    "built-in",
    (
        f"node n0 4*{CARD} cpu=32 memory=128Gi labels=kubernetes.io/hostname:n0,zone:x",
        f"node n1 2*{CARD} cpu=16 memory=64Gi labels=kubernetes.io/hostname:n1,zone:y spec={{unschedulable: true}}",
        f"queue a cards={CARD}:3",
        f"queue b cards={CARD}:8",
        "queue c",
        f"pod solo queue=a cpu=1 gpu=2 card={CARD}",
        f"pod next queue=a cpu=1 gpu=2 card={CARD}",
        f"deployment chat*2 queue=b cpu=1 gpu=1 card={CARD}",
        f"job train queue=b min=2 + w*2 cpu=1 gpu=1 card={CARD}",
        f"job large queue=b min=1 + w*1 cpu=1 gpu=9 card={CARD}",
        f"job lost queue=cc min=1 + w*1 cpu=1 gpu=1 card={CARD}",
        f"job refused queue=a min=2 request={CARD}:2 + w*2 cpu=1 gpu=1 card={CARD}",
        "job wide queue=c min=2 + w*2 cpu=30",
        "job wrong queue=b min=1 plugins={nope: []} + w*1 cpu=1",
        "pod gated queue=b cpu=1 schedulingGates=[{name: example.com/later}]",
        "group few queue=b min=3",
        "pod few-0 group=few queue=b cpu=1",
        "deployment ports*2 queue=b cpu=1 port=29500",
        f"pod unnamed queue=c cpu=1 gpu=1 card={CARD}",
    ),
)


def _age(obj: Manifest) -> tuple[str, str]:
    """The order of jobs of one queue: a server that takes more than a second to create them keeps it."""
    return obj["metadata"]["creationTimestamp"], obj["metadata"]["name"]


@pytest.fixture
async def world(cluster: Cluster) -> World:
    """The cluster as the simulation leaves it behind, on the API server."""
    found = simulated(STATEMENTS)
    kinds = ("PriorityClass", "Queue", "Node", "Job", "Deployment", "ReplicaSet", "Pod", "PodGroup")
    objects = [obj for kind in kinds for obj in sorted(found.of(kind), key=_age)]
    await create_as_they_are(cluster, json.loads(json.dumps(objects)))
    await create_events(cluster, found.warnings_about("Job"))
    return found


@pytest.fixture
async def shell(world: World, cluster: Cluster, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Shell]:
    """A cache of the cluster."""
    async with cached(cluster, control_plane, tmp_path) as found:
        yield found


@asynccontextmanager
async def cached(cluster: Cluster, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Shell]:
    config = control_plane.kubeconfig_for("scheduler-b", namespace=cluster.namespace, name="one-text")
    found = Shell(config, cluster.namespace, tmp_path)
    process = await found.begin()
    try:
        yield found
    finally:
        process.terminate()
        await process.wait()


#: The heading of the fixes, and the part of it that names a search that ended.
_FIXES, _ENDED = ("Any one of these", "No fix"), "search ended at its bound"


def plain(groups: Iterable[Manifest], text: str, namespace: str) -> list[str]:
    """A text without what differs between two clusters: namespace, ages, times, and names made from uids of pods.

    Pods of equal templates are in the order of their creation, and of uids.
    """
    text = text.replace(f"{namespace}/", "default/").replace(f"namespace {namespace}", "namespace default")
    text = text.replace(f" -n {namespace}", " -n default")
    for group in groups:
        for owner in group["metadata"].get("ownerReferences") or ():
            if owner["kind"] == "Pod":
                text = text.replace(f"podgroup/{group['metadata']['name']}", f"pod/{owner['name']}")
    text = re.sub(r"(, pending for|Expected start: ).*", r"\1", text)
    text = re.sub(r"(?m)^\S+(, \S+)+(?= and \d+ more: )", "pods", text)
    text = re.sub(r"(?m)^\S+(, \S+)+(?=: )", lambda names: ", ".join(sorted(names[0].split(", "))), text)
    return [" ".join(line.split()) for line in text.splitlines() if not line.startswith("Expected start:")]


def before_fixes(lines: list[str]) -> list[str]:
    """Without the fixes: on a slow machine the search of one source ends at its bound of CPU time, and finds fewer."""
    return lines[: next((place for place, line in enumerate(lines) if line.startswith(_FIXES)), len(lines))]


@pytest.mark.campaign
@pytest.mark.asyncio
async def test_each_source_gives_the_text_of_the_manifests(world: World, cluster: Cluster, shell: Shell) -> None:
    assert (await shell("snapshot -o cluster.json")).status == 0
    names = {job.name for job in world.waiting()}
    assert {"job/large", "job/refused", "podgroup/few", "deployment/ports", "pod/unnamed"} <= names
    differences, groups = [], world.of("PodGroup")
    of_jobs = [(f"job/{name}", True) for name in ("large", "lost", "refused", "wide", "wrong")]  # fixes change the Job
    for name, fix in [
        *((name, False) for name in sorted(names | {"pod/solo", "pod/next", "deployment/chat"})),
        *of_jobs,
    ]:
        manifests = plain(groups, world.answer(name, fix=fix)[1], cluster.namespace)
        words = f"explain {name} -n {{namespace}} --no-expected-start{' --fix' if fix else ''}"
        live, cached = await shell.both(words)
        saved = await shell(f"{words} -f cluster.json")
        for source, answer in {"live": live, "cache": cached, "snapshot": saved}.items():
            found, wanted = plain(groups, answer.out, cluster.namespace), manifests
            if any(_ENDED in line for line in (*found, *wanted)):
                found, wanted = before_fixes(found), before_fixes(wanted)
            if found != wanted:
                more = [f"+ {line}" for line in found if line not in wanted]
                less = [f"- {line}" for line in wanted if line not in found]
                differences.append("\n".join([f"{name}, {source}: {answer.err}", *less, *more]))
    assert not differences, "\n\n".join(differences)


#: Causes that depend on objects which each source reads in its own way: labels, pods, claims, volumes, devices.
CAUSES: list[dict[str, Any]] = [case for case in DATA["refusals"] if case.get("live")]


@pytest.mark.campaign
@pytest.mark.parametrize("case", CAUSES, ids=lambda case: str(case["name"]))
@pytest.mark.asyncio
async def test_each_source_gives_the_text_of_a_cause(
    case: dict[str, Any], cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    file = written(case, tmp_path)
    objects = objects_of(file, 60 * SECOND)
    groups = json.loads(json.dumps([obj for obj in objects if obj["kind"] == "PodGroup"]))
    overheads = [obj["spec"] for obj in objects if obj["kind"] == "Pod" and "overhead" in obj["spec"]]
    for spec in {one["runtimeClassName"]: one for one in overheads}.values():  # its admission checks the pods
        named = {"name": spec["runtimeClassName"]}
        fixed = {"handler": "runc", "overhead": {"podFixed": spec["overhead"]}}
        await cluster.create({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": named, **fixed})
    await create_as_they_are(cluster, objects)
    async with cached(cluster, control_plane, tmp_path) as shell:
        words = f"explain {case.get('explain', 'g')} --no-expected-start"
        manifests = plain(groups, (await shell(f"{words} -f {file} --until 1m")).out, cluster.namespace)
        assert (await shell("snapshot -o saved.json")).status == 0
        live, from_cache = await shell.both(f"{words} -n {{namespace}}")
        saved = await shell(f"{words} -n {{namespace}} -f saved.json")
    summary = manifests[0].partition(": ")[2].removesuffix(".")
    assert all(re.search(pattern, summary) for pattern in case["head"]), manifests
    for source, answer in {"live": live, "cache": from_cache, "snapshot": saved}.items():
        assert plain(groups, answer.out, cluster.namespace) == manifests, f"{source}: {answer.err}"


#: The questions about each situation. An API server refuses the PodGroup of a queue in upper case, which files have.
SITUATIONS: dict[str, list[dict[str, Any]]] = {
    path.stem: [
        case
        for case in CASES
        if case["file"] == path.stem and case["until"] == "15m" and (path.stem[:2], case["name"]) != ("18", "nq")
    ]
    for path in sorted((HERE / "situations").iterdir())
}


@pytest.mark.campaign
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.asyncio
async def test_each_source_answers_the_questions_of_a_situation(
    situation: str,
    cluster: Cluster,
    control_plane: ControlPlane,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = expanded(HERE / "situations" / f"{situation}.yaml")
    objects = objects_of(file, 900 * SECOND, "Event")
    groups = json.loads(json.dumps([obj for obj in objects if obj["kind"] == "PodGroup"]))
    await cluster.create_all([queue("root"), queue("default")])
    await create_as_they_are(cluster, [obj for obj in objects if obj["kind"] != "Event"])
    await create_events(cluster, (obj for obj in objects if obj["kind"] == "Event"))
    differences: list[str] = []
    async with cached(cluster, control_plane, tmp_path) as shell:
        assert (await shell("snapshot -o saved.json")).status == 0
        saved = ["-f", str(tmp_path / "saved.json"), "-n", cluster.namespace]
        live = LiveCommand(control_plane.kubeconfig_for("scheduler-b"), cluster.namespace, capsys)
        for case in SITUATIONS[situation]:
            (space, _, name), words = case["name"].rpartition("/"), ("--no-expected-start",)
            manifests = await live.without("explain", case["name"], *words, "-f", str(file), "--until", "15m")
            answers = {
                "live": await live.explain(name, *words),
                "cache": await shell.ask_cache(f"explain {name} -n {{namespace}} {words[0]}"),
                "snapshot": await live.without("explain", name, *words, *saved),
            }
            wanted = plain(groups, manifests.out.replace(f"{space or 'default'}/", "default/"), cluster.namespace)
            for source, answer in answers.items():
                found = plain(groups, answer.out, cluster.namespace)
                if sorted(found) != sorted(wanted):  # pods that were created within one second have another order
                    more = [f"+ {line}" for line in found if line not in wanted]
                    less = [f"- {line}" for line in wanted if line not in found]
                    differences.append("\n".join([f"{name}, {source}: {answer.err}", *less, *more]))
            text = "\n".join(wanted)
            facts = [fact.partition(", pending for")[0] for fact in case["contains"]]
            missing = [fact for fact in facts if fact not in text and not fact.startswith("Expected start:")]
            differences += [f"{name} lacks {fact!r}:\n{text}" for fact in missing]
            differences += [f"{name} says {fact!r}:\n{text}" for fact in case.get("lacks", ()) if fact in text]
    assert not differences, "\n\n".join(differences)
