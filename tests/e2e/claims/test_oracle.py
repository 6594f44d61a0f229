"""The oracle over the history of claims finds planted violations and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Self

import pytest

from tests.controlplane.manifests import Manifest, gpu_node, node, plain, pod, pod_group, queue
from tests.e2e.claims.oracle import DeviceOracle
from tests.e2e.history import Change, Moment

API = "resource.k8s.io/v1"
H200 = "NVIDIA-H200"
GPU = "gpu.nvidia.com"


def device(name: str, **fields: Any) -> Manifest:
    """A whole GPU."""
    return {"name": name, "attributes": {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA H200"}}, **fields}


def partition(name: str) -> Manifest:
    """10Gi of 20Gi."""
    found = device(name, consumesCounters=[{"counterSet": "s", "counters": {"memory": {"value": "10Gi"}}}])
    found["attributes"] |= {"type": {"string": "mig"}, "profile": {"string": "1g.10gb"}}
    return found


SHARED = device("s0", allowMultipleAllocations=True, capacity={"memory": {"value": "10"}})


class Story:
    """A history written by hand: each method is the next change, in a revision of its own."""

    def __init__(self, grace: float = 0.0) -> None:
        self.oracle = DeviceOracle(grace=grace)
        self._revision = 0
        self._now = 0.0
        self._live: dict[tuple[str, str], Manifest] = {}
        self.put("nodes", node("n1")).put("nodes", node("n2"))
        self.put("nodes", gpu_node("plugin", H200, 8))
        self.publish(device("g0"), device("g1"), SHARED)

    def put(self, kind: str, *items: Manifest) -> Self:
        """These objects are as given from now on, all at once."""
        changes = []
        for item in copy.deepcopy(items):
            meta = item["metadata"]
            if kind in {"pods", "podgroups", "resourceclaims"}:
                meta.setdefault("namespace", "ns")
            meta.setdefault("uid", f"{kind}-{meta['name']}")
            changes.append(Change(kind, self._live.get((kind, meta["name"])), item))
            self._live[kind, meta["name"]] = item
        return self._apply(*changes)

    def gone(self, kind: str, name: str) -> Self:
        return self._apply(Change(kind, self._live.pop((kind, name)), None))

    def _apply(self, *changes: Change) -> Self:
        self._revision += 1
        self.oracle.apply(Moment(self._revision, self._now, changes))
        return self

    def later(self, seconds: float) -> Self:
        self._now += seconds
        return self

    def publish(self, *devices: Manifest, name: str = "n1", generation: int = 1, counters: str = "") -> Self:
        pool = {"name": name, "generation": generation, "resourceSliceCount": 1}
        spec: Manifest = {"driver": GPU, "nodeName": name, "pool": pool, "devices": list(devices)}
        if counters:
            spec["sharedCounters"] = [{"name": "s", "counters": {"memory": {"value": counters}}}]
        return self.put("resourceslices", plain("ResourceSlice", f"{name}-{generation}", API, spec=spec))

    def pod(self, name: str, *claims: str, **fields: Any) -> Self:
        if claims:
            fields["resourceClaims"] = [{"name": each, "resourceClaimName": each} for each in claims]
        return self.put("pods", pod(name, **fields))

    def claim(self, name: str, *results: Mapping[str, Any], pods: str = "", where: str = "n1", **meta: Any) -> Self:
        """A claim with these results, reserved for these pods."""
        status: Manifest = {"reservedFor": [{"name": each, "uid": f"pods-{each}"} for each in pods.split()]}
        if results:
            field = {"key": "metadata.name", "operator": "In", "values": [where]}
            selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
            status["allocation"] = {"devices": {"results": list(results)}, "nodeSelector": selector}
        return self.put(
            "resourceclaims", {"kind": "ResourceClaim", "metadata": {"name": name, **meta}, "status": status}
        )

    def bind(self, name: str, where: str = "n1") -> Self:
        found = copy.deepcopy(self._live["pods", name])
        found["spec"]["nodeName"] = where
        return self.put("pods", found)

    def phase(self, name: str, phase: str) -> Self:
        return self.put("pods", {**self._live["pods", name], "status": {"phase": phase}})

    def run(self, name: str, *results: Mapping[str, Any], **fields: Any) -> Self:
        """A pod with a claim of its name, allocated, reserved, bound and started."""
        self.pod(name, name, **fields).claim(name, *results, pods=name)
        return self.bind(name).phase(name, "Running")

    def quota(self, **cards: int) -> Self:
        return self.put("queues", queue("q", cards={name.replace("_", "-"): count for name, count in cards.items()}))

    def violations(self) -> list[str]:
        self.oracle.finish()
        return [violation.text for violation in self.oracle.violations]


def got(name: str = "g0", pool: str = "n1", **fields: Any) -> Manifest:
    return {"request": "r", "driver": GPU, "pool": pool, "device": name, **fields}


def share(identity: str, memory: int) -> Manifest:
    return got("s0", shareID=identity, consumedCapacity={"memory": str(memory)})


Q = {"queue": "q"}
MIG = f"{H200}/mig-1g.10gb-mixed"
#: What happens, and the violations.
STORIES: dict[str, tuple[Callable[[Story], Story], list[str]]] = {
    "two pods with a device each": (lambda it: it.run("a", got()).run("b", got("g1")), []),
    "one device twice": (
        lambda it: it.run("a", got()).run("b", got()),
        [f"device {GPU}/n1/g0 has dedicated allocations of ns/a, ns/b"]),
    "one device twice in one claim": (
        lambda it: it.run("a", got(), got()), [f"device {GPU}/n1/g0 has dedicated allocations of ns/a"]),
    "one device twice for a moment only": (
        lambda it: it.run("a", got()).pod("b", "b").claim("b", got(), pods="b").claim("b"),
        [f"device {GPU}/n1/g0 has dedicated allocations of ns/a, ns/b"]),
    "one device of two claims that were written in one gap of the watch": (
        lambda it: it.put("resourceclaims", *(
            {"metadata": {"name": name}, "status": {"allocation": {"devices": {"results": [got()]}}}} for name in "ab"))
        .claim("a").claim("b"),
        [f"device {GPU}/n1/g0 has dedicated allocations of ns/a, ns/b"]),
    "one device after the other pod's end": (
        lambda it: it.run("a", got()).phase("a", "Succeeded").claim("a").run("b", got()), []),
    "admin access to a device in use": (lambda it: it.run("a", got()).run("b", got(adminAccess=True)), []),
    "a device of no ResourceSlice": (
        lambda it: it.run("a", got("g9")), [f"device {GPU}/n1/g9 is in no ResourceSlice"]),
    "a device that was withdrawn": (lambda it: it.run("a", got()).gone("resourceslices", "n1-1").claim("c"), []),
    "shares within the capacity": (lambda it: it.run("a", share("x", 4)).run("b", share("y", 6)), []),
    "shares beyond the capacity": (
        lambda it: it.run("a", share("x", 4)).run("b", share("y", 7)),
        [f"device {GPU}/n1/s0 has 11 of 10 memory in use: ns/a, ns/b"]),
    "shares of one ID": (
        lambda it: it.run("a", share("x", 1)).run("b", share("x", 1)),
        [f"device {GPU}/n1/s0 has two shares of one ID: ns/a, ns/b"]),
    "a share of a whole device": (
        lambda it: it.run("a", got(shareID="x")), [f"device {GPU}/n1/g0 is not shareable, used by ns/a"]),
    "a shared device as a whole": (
        lambda it: it.run("a", got("s0")), [f"device {GPU}/n1/s0 is shareable, used by ns/a"]),
    "a device shared and whole": (
        lambda it: it.run("a", got("s0")).run("b", share("x", 1)),
        [f"device {GPU}/n1/s0 is shareable, used by ns/a",
         f"device {GPU}/n1/s0 is dedicated to ns/a and shared by ns/b"]),
    "partitions within the counters": (
        lambda it: it.publish(*map(partition, "uvw"), counters="20Gi", name="n2").pod("a", "a")
        .claim("a", got("u", "n2"), got("v", "n2"), pods="a", where="n2").bind("a", "n2"), []),
    "partitions beyond the counters": (
        lambda it: it.publish(*map(partition, "uvw"), counters="20Gi", name="n2").pod("a", "a", "b")
        .claim("a", got("u", "n2"), got("v", "n2"), pods="a", where="n2")
        .claim("b", got("w", "n2"), pods="a", where="n2").bind("a", "n2"),
        [f"pool {GPU}/n2 has {30 * 2**30:g} of {20 * 2**30:g} s.memory in use"]),
    "partitions whose counters a newer generation has not": (
        lambda it: it.publish(partition("u"), counters="20Gi", name="n2")
        .publish(partition("u"), counters="5Gi", name="n2", generation=2).pod("a", "a")
        .claim("a", got("u", "n2"), pods="a", where="n2").bind("a", "n2"),
        [f"pool {GPU}/n2 has {10 * 2**30:g} of {5 * 2**30:g} s.memory in use"]),
    "a pod bound before the allocation": (
        lambda it: it.pod("a", "a").claim("a").bind("a").claim("a", got(), pods="a"),
        ["pod ns/a is bound, but claim ns/a is not allocated"]),
    "a pod bound without the reservation": (
        lambda it: it.pod("a", "a").claim("a", got()).bind("a").claim("a", got(), pods="a"),
        ["pod ns/a is bound, but claim ns/a is not reserved for it"]),
    "a pod bound without its claim": (
        lambda it: it.pod("a", "a").bind("a"), ["pod ns/a is bound, but claim ns/a does not exist"]),
    "a pod bound before the claim of its template": (
        lambda it: it.put("pods", pod("a", resourceClaims=[{"name": "r", "resourceClaimTemplateName": "t"}])).bind("a"),
        ["pod ns/a is bound, but claim of a template does not exist"]),
    "a pod that needs no claim of its template": (
        lambda it: it.put("pods", {
            **pod("a", resourceClaims=[{"name": "r", "resourceClaimTemplateName": "t"}]),
            "status": {"resourceClaimStatuses": [{"name": "r"}]}}).bind("a"), []),
    "a pod on another node than its device": (
        lambda it: it.pod("a", "a").claim("a", got(), pods="a").bind("a", "n2"),
        ["pod ns/a is bound, but claim ns/a is allocated on another node"]),
    "a running pod loses its reservation": (
        lambda it: it.run("a", got()).claim("a", got()),
        ["pod ns/a runs, but claim ns/a is not reserved for it", "claim ns/a is allocated without a bound consumer"]),
    "a running pod loses its claim": (
        lambda it: it.run("a", got()).gone("resourceclaims", "a"), ["pod ns/a runs, but claim ns/a does not exist"]),
    "a finished pod loses its claim": (
        lambda it: it.run("a", got()).phase("a", "Failed").gone("resourceclaims", "a"), []),
    "a device moves to another one": (
        lambda it: it.run("a", got()).claim("a", got("g1"), pods="a").run("b", got()), []),
    "a gang that has its claims": (
        lambda it: it.put("podgroups", pod_group("g", members=2))
        .pod("a", "a", group="g").pod("b", "b", group="g").claim("a", got(), pods="a").claim("b", got("g1"), pods="b")
        .bind("a").bind("b"), []),
    "a gang bound before all claims": (
        lambda it: it.put("podgroups", pod_group("g", members=2))
        .pod("a", "a", group="g").pod("b", "b", group="g").claim("a", got(), pods="a").claim("b").bind("a")
        .claim("b", got("g1"), pods="b").bind("b"),
        ["pod ns/a is bound when 1 of 2 members of its gang have their claims"]),
    "a gang that was bound gets a new member": (
        lambda it: it.put("podgroups", pod_group("g", members=2))
        .pod("a", "a", group="g").pod("b", "b", group="g").claim("a", got(), pods="a").claim("b", got("g1"), pods="b")
        .bind("a").bind("b").gone("pods", "b").claim("b").pod("d", "b", group="g").claim("b", got("g1"), pods="d")
        .bind("d"), []),
    "a quota of both kinds": (
        lambda it: it.quota(NVIDIA_H200=2).run("a", got(), **Q)
        .pod("p", requests={"nvidia.com/gpu": 1}, **Q).bind("p", "plugin"), []),
    "a quota exceeded by a claim": (
        lambda it: it.quota(NVIDIA_H200=1).pod("p", requests={"nvidia.com/gpu": 1}, **Q).bind("p", "plugin")
        .run("a", got(), **Q),
        [f"queue q has 2 of 1 {H200}"]),
    "a quota exceeded by a device plugin": (
        lambda it: it.quota(NVIDIA_H200=1).run("a", got(), **Q)
        .pod("p", requests={"nvidia.com/gpu": 1}, **Q).bind("p", "plugin"),
        [f"queue q has 2 of 1 {H200}"]),
    "a quota after an end": (
        lambda it: it.quota(NVIDIA_H200=1).run("a", got(), **Q).phase("a", "Succeeded").claim("a")
        .run("b", got("g1"), **Q), []),
    "a claim is charged while its pod lasts": (
        lambda it: it.quota(NVIDIA_H200=1).pod("p", requests={"nvidia.com/gpu": 1}, **Q).run("a", got(), **Q)
        .phase("p", "Pending").bind("p", "plugin"),
        [f"queue q has 2 of 1 {H200}"]),
    "a quota of the queue of a group": (
        lambda it: it.quota(NVIDIA_H200=0).put("podgroups", pod_group("g", queue="q")).run("a", got(), group="g"),
        [f"queue q has 1 of 0 {H200}"]),
    "a group that moves after a bind": (
        lambda it: it.quota(NVIDIA_H200=1).put("queues", queue("r", cards={H200: 1}))
        .put("podgroups", pod_group("g", queue="q")).pod("p", requests={"nvidia.com/gpu": 1}, group="g")
        .bind("p", "plugin").put("podgroups", pod_group("g", queue="r")).phase("p", "Running")
        .run("a", got(), queue="r"), []),
    "a group that is deleted after a bind": (
        lambda it: it.quota(NVIDIA_H200=1).put("podgroups", pod_group("g", queue="q"))
        .pod("p", requests={"nvidia.com/gpu": 1}, group="g").bind("p", "plugin").gone("podgroups", "g")
        .phase("p", "Running").run("a", got(), **Q), [f"queue q has 2 of 1 {H200}"]),
    "a quota lowered below the use": (lambda it: it.quota(NVIDIA_H200=1).run("a", got(), **Q).quota(NVIDIA_H200=0), []),
    "a card that the quota does not name": (
        lambda it: it.quota(A100=1).run("a", got(), **Q), [f"queue q has 1 of 0 {H200}"]),
    "a quota over several models": (
        lambda it: it.put("queues", queue("q", cards={f"{H200} | NVIDIA-H100": 1})).run("a", got(), **Q)
        .run("b", got("g1"), **Q),
        [f"queue q has 2 of 1 {H200} | NVIDIA-H100"]),
    "shares are charged in thousandths": (
        lambda it: it.put("queues", queue("q", cards={f"{H200}/shared": 1})).run("a", share("x", 4), **Q)
        .run("b", share("y", 6), **Q), []),
    "a partition is charged its own card": (
        lambda it: it.put("queues", queue("q", cards={H200: 1})).publish(partition("u"), counters="20Gi", name="n2")
        .pod("a", "a", **Q).claim("a", got("u", "n2"), pods="a", where="n2").bind("a", "n2"),
        [f"queue q has 1 of 0 {MIG}"]),
    "an allocation that is left": (
        lambda it: it.pod("a", "a").claim("a", got(), pods="a"), ["claim ns/a is allocated without a bound consumer"]),
    "an allocation of a pod that is gone": (
        lambda it: it.run("a", got()).gone("pods", "a"), ["claim ns/a is allocated without a bound consumer"]),
    "a deleted claim that stays": (
        lambda it: it.claim("a", deletionTimestamp="x"), ["claim ns/a is deleted and stays"]),
}  # fmt: skip


@pytest.mark.parametrize("play, violations", STORIES.values(), ids=STORIES)
def test_the_oracle_finds_planted_violations(play: Callable[[Story], Story], violations: list[str]) -> None:
    assert play(Story()).violations() == violations


def test_a_quota_that_was_lowered_within_the_grace_is_the_former_one() -> None:
    lowered = Story(grace=30.0).quota(NVIDIA_H200=1).quota(NVIDIA_H200=0).run("a", got(), **Q)
    assert lowered.violations() == []
    assert lowered.run("b", got("g1"), **Q).violations() == [f"queue q has 2 of 1 {H200}"]


def _half() -> Story:
    """A gang of `a` and `b`, of which `a` has its claim."""
    story = (
        Story(grace=30.0).put("podgroups", pod_group("g", members=2)).pod("a", "a", group="g").pod("b", "b", group="g")
    )
    return story.claim("a", got(), pods="a")


@pytest.mark.parametrize(
    ("ends", "seconds", "is_whole"),
    [
        pytest.param(lambda it: it.claim("b", got("g1"), pods="b").gone("pods", "b").claim("b"), 30, True, id="within"),
        pytest.param(lambda it: it.claim("b", got("g1"), pods="b").gone("pods", "b").claim("b"), 31, False, id="later"),
        pytest.param(lambda it: it.gone("pods", "b").claim("b", got("g1"), pods="b").claim("b"), 30, True, id="after"),
        pytest.param(lambda it: it.claim("b").gone("pods", "b"), 0, False, id="without its claim"),
    ],
)
def test_a_member_that_is_deleted_while_its_gang_is_bound_counts_within_the_grace(
    ends: Callable[[Story], Story], seconds: float, is_whole: bool
) -> None:
    found = ends(_half()).later(seconds).bind("a").violations()
    assert found == ([] if is_whole else ["pod ns/a is bound when 1 of 2 members of its gang have their claims"])
