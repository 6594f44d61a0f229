"""A cluster of H200 in which inference takes cards from training: its objects, its events, and what to wait for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from capcard_sched.model import annotations as keys
from tests.controlplane.cluster import Cluster, Manifest, Manifests, RequestError
from tests.controlplane.manifests import gpu_node, pod, pod_group, queue
from tests.e2e.daemons import Daemon
from tests.e2e.history import Moment

H200: Final = "NVIDIA-H200"
#: The scheduler-conf of the tide, with a place for more plugins of the second tier.
_CONF: Final = """
actions: "{actions}"
tiers:
- plugins:
  - name: priority
  - {{name: gang, {gang}}}
  - {{name: conformance, enableReclaimable: false}}
- plugins:
  - name: predicates
  - name: capacity-card
    arguments:
      overCommitFactor: 2
      cardUnlimitedCpuMemory: true
      podOwnerReferenceToServiceType: {{ReplicaSet: inference, Job: training}}
  - name: nodeorder
{more}"""
#: Much more than anything here takes on an idle machine: it may be a busy one.
PATIENCE: Final = 45.0
#: So long pods are given to end. The tests' kubelet takes less.
GRACE: Final = 30
_PRIORITIES: Final = (20000, 40000, 60000, 80000)
_SERVICE: Final = "volcano.sh/service.type"
#: Reasons of events about an action, each emitted once; others describe a state.
_DEEDS: Final = frozenset({"Evict", "Reclaimed", "Preempting"})


def conf(
    *more: str, actions: str = "enqueue, allocate, backfill, reclaim", gang: str = "enableReclaimable: false"
) -> str:
    """The scheduler-conf of the tide; `more` are plugins of its second tier, `gang` the switches of that plugin."""
    return _CONF.format(actions=actions, gang=gang, more="".join(f"  - name: {name}\n" for name in more))


async def furnish(cluster: Cluster, *, nodes: int = 1, inference: int = 16, training: int = 16) -> None:
    """Nodes n1, n2 ... of 8 cards, PriorityClasses, and the queues `qi` and `qt` with so many cards each.

    Of `qj` may be taken as of `qt`; it is for inference too.
    """
    classes = [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": f"pc-{value}"},
            "value": value,
            "preemptionPolicy": "PreemptLowerPriority",
        }
        for value in _PRIORITIES
    ]
    machines = [gpu_node(f"n{number + 1}", H200, 8, cpu=64, memory="512Gi") for number in range(nodes)]
    await cluster.create_all(
        [
            *classes,
            *machines,
            queue("qi", cards={H200: inference}, priority=80000, reclaimable=False),
            queue("qj", cards={H200: inference}, priority=80000, reclaimable=True),
            queue("qt", cards={H200: training}, priority=20000, reclaimable=True),
        ]
    )
    # Admission looks the classes up in a cache of its own, which is updated a moment later.
    trial = pod("trial", priorityClassName=f"pc-{_PRIORITIES[-1]}")
    path = await cluster.path("pods")

    async def known() -> bool:
        try:
            await cluster.request("POST", path, params={"dryRun": "All"}, body=trial)
        except RequestError as answer:
            if answer.status != 403:
                raise
            return False
        return True

    await cluster.wait_until(known, "the PriorityClasses to be known", within=PATIENCE)


def work(
    name: str,
    cards: int,
    *nodes: str,
    service: str = "training",
    queue: str = "qt",
    priority: int = 20000,
    minimum: int | None = None,
    notes: Mapping[str, str] | None = None,
    first: int = 0,
    grace: int = GRACE,
    **rest: Any,
) -> Manifests:
    """A PodGroup, unless `first` is above 0, and one pod of so many cards per name of a node ("" for any).

    The pods are `<name>-w-<index>`: names of three parts give the order of members.

    `minimum`: members of the gang, all of them unless it is given; `notes`: annotations of the PodGroup.
    """
    chosen = [{"nodeSelector": {"kubernetes.io/hostname": node}} if node else {} for node in nodes]
    pods = [
        pod(
            f"{name}-w-{index}",
            group=name,
            cards=H200,
            requests={"cpu": "1", "nvidia.com/gpu": cards},
            priorityClassName=f"pc-{priority}",
            grace=grace,
            **{**where, **rest},
        )
        for index, where in enumerate(chosen, start=first)
    ]
    group = pod_group(
        name,
        queue=queue,
        members=len(pods) if minimum is None else minimum,
        annotations={_SERVICE: service, **(notes or {})},
        priorityClassName=f"pc-{priority}",
    )
    return pods if first else [group, *pods]


def service(name: str, cards: int, *nodes: str, queue: str = "qi", minimum: int = 1, **rest: Any) -> Manifests:
    """Inference: replicas of which one is enough."""
    return work(name, cards, *nodes, service="inference", queue=queue, priority=80000, minimum=minimum, **rest)


async def make(cluster: Cluster, *manifests: Manifests) -> None:
    """Make objects; the pods of one kind of work one after the other, so that they are of different age."""
    for each in manifests:
        for item in each:
            await cluster.create(item)


async def running(cluster: Cluster) -> dict[str, str]:
    """Pod to node, of the pods that run and are not terminating."""
    return {
        item["metadata"]["name"]: item["spec"]["nodeName"]
        for item in await cluster.list("pods")
        if item["status"].get("phase") == "Running" and "deletionTimestamp" not in item["metadata"]
    }


async def until_running(cluster: Cluster, names: Collection[str]) -> dict[str, str]:
    """Wait until exactly these pods run and none is terminating; returns their nodes."""
    seen: dict[str, Any] = {}

    async def so() -> bool:
        items = await cluster.list("pods")
        seen.clear()
        seen.update(
            {item["metadata"]["name"]: "leaving" for item in items if "deletionTimestamp" in item["metadata"]},
            **await running(cluster),
        )
        return set(seen) == set(names) and "leaving" not in seen.values()

    try:
        await cluster.wait_until(so, f"{sorted(names)} to run", within=PATIENCE, every=0.1)
    except AssertionError as error:
        error.add_note(f"there are {seen}")
        error.add_note("\n".join(f"{emitted}" for emitted in await all_events(cluster)))
        raise
    return dict(seen)


async def settled(daemon: Daemon, *, sessions: int = 3) -> None:
    """Return when the daemon has had so many more sessions: whatever follows at once has been decided.

    A session is held when something changes, and after a second at most.
    """
    before = await daemon.metric("volcano_cycles_total")
    for _ in range(int(PATIENCE / 0.1)):
        if await daemon.metric("volcano_cycles_total") >= before + sessions:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"fewer than {sessions} sessions in {PATIENCE:g} s")


# --- events -----------------------------------------------------------------------------------------------------------


class ObjectEvent(NamedTuple):
    """An event."""

    kind: str
    name: str
    type: str
    reason: str
    message: str


async def all_events(cluster: Cluster, *reasons: str) -> list[ObjectEvent]:
    """Every event of the namespace, or those of some reasons, in order. An action appears once per event."""
    return sorted(
        ObjectEvent(about["kind"], about["name"], event["type"], event["reason"], event["message"])
        for event in await cluster.list("events")
        for about in [event["involvedObject"]]
        if not reasons or event["reason"] in reasons
        for _ in range((event.get("count") or 1) if event["reason"] in _DEEDS else 1)
    )


async def until_emitted(cluster: Cluster, expected: Iterable[ObjectEvent]) -> None:
    """Wait until these events, and of their reasons no others, are there."""
    wanted = sorted(expected)
    reasons = {emitted.reason for emitted in wanted}

    async def so() -> bool:
        return await all_events(cluster, *reasons) == wanted

    try:
        await cluster.wait_until(so, f"events {sorted(reasons)}", within=PATIENCE, every=0.1)
    except AssertionError as error:
        error.add_note("wanted\n" + "\n".join(map(str, wanted)))
        error.add_note("there are\n" + "\n".join(map(str, await all_events(cluster))))
        raise


def evicted(
    cluster: Cluster,
    victims: Iterable[str],
    lacking: str,
    node: str,
    by: str,
    *,
    action: str = "reclaim",
    queue: str = "qi",
) -> list[ObjectEvent]:
    """Events on evicted pods."""
    why = f"Pod is evicted, because of {action}: {lacking} on node {node} for {cluster.namespace}/{by} of queue {queue}"
    return [ObjectEvent("Pod", name, "Warning", "Evict", why) for name in victims]


def group_evicted(
    cluster: Cluster, group: str, pods: int, by: str, *, action: str = "reclaim", queue: str = "qi"
) -> ObjectEvent:
    """The event on their PodGroup, once."""
    return ObjectEvent(
        "PodGroup",
        group,
        "Normal",
        "Evict",
        f"{action}: {pods} pods evicted for {cluster.namespace}/{by} of queue {queue}",
    )


def given(
    cluster: Cluster,
    taker: str,
    group: str,
    pods: int,
    node: str,
    jobs: Sequence[str],
    lacking: str,
    *,
    reason: str = "Reclaimed",
) -> list[ObjectEvent]:
    """The events on the preemptor and on its PodGroup."""
    names = ", ".join(f"{cluster.namespace}/{job}" for job in jobs)
    text = f"{pods} pods of {len(jobs)} jobs evicted on node {node}: {names}; waiting for {lacking}"
    return [ObjectEvent("Pod", taker, "Normal", reason, text), ObjectEvent("PodGroup", group, "Normal", reason, text)]


# --- history ----------------------------------------------------------------------------------------------------------


def leavers(moments: Sequence[Moment]) -> dict[str, Manifest]:
    """Deleted pods, by name: as they were last seen, their conditions by type under `conditions`."""
    found: dict[str, Manifest] = {}
    for moment in moments:
        for change in moment.changes:
            if change.kind == "pods" and change.before is not None:
                item = change.after or change.before
                if "deletionTimestamp" in item["metadata"]:
                    found[item["metadata"]["name"]] = item
    return {
        name: {**item, "conditions": {row["type"]: row for row in item["status"].get("conditions") or []}}
        for name, item in found.items()
    }


def broken_gangs(moments: Sequence[Moment]) -> list[str]:
    """Gangs of which at the end some members are left that run, and fewer than their minimum."""
    live: dict[str, Manifest] = {}
    groups: dict[str, Manifest] = {}
    for moment in moments:
        for change in moment.changes:
            item = change.after or change.before
            assert item is not None
            table = {"pods": live, "podgroups": groups}.get(change.kind)
            if table is not None:
                table.pop(item["metadata"]["uid"], None)
                if change.after is not None:
                    table[item["metadata"]["uid"]] = item
    count = Counter(
        item["metadata"].get("annotations", {}).get(keys.GROUP_NAME)
        for item in live.values()
        if item["spec"].get("nodeName") and "deletionTimestamp" not in item["metadata"]
    )
    return [
        f"{item['metadata']['name']}: {count[item['metadata']['name']]} of {item['spec']['minMember']} run"
        for item in groups.values()
        if 0 < count[item["metadata"]["name"]] < item["spec"]["minMember"]
    ]
