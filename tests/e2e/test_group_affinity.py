"""PodGroups that share no rack, on an API server: `spec.topologyAffinity` with the plugin `group-topology-affinity`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest, node, plain, pod, pod_group, queue
from tests.e2e.daemons import Daemon
from tests.e2e.expectations import message, until, until_bound

CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: group-topology-affinity}, {name: network-topology-aware}]
"""
_X: Manifest = {"matchLabels": {"w": "x"}}
_ONE_OF: Manifest = {"key": "w", "operator": "In", "values": ["x", "y"]}
_RACK = {"mode": "hard", "highestTierAllowed": 1}


@pytest.fixture
async def daemon(cluster: Cluster, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Daemon]:
    """The scheduler, and eight nodes of one CPU in two racks."""
    await cluster.create_all([queue("default"), *(node(f"n{number}", cpu=1) for number in range(8))])
    await cluster.create_all(
        [rack("a", 0, 1, 2, 3), rack("b", 4, 5, 6, 7), _hyper_node("top", 2, "HyperNode", "a", "b")]
    )
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CONF) as running:
        await running.logged("caches synced")
        yield running


def _hyper_node(name: str, tier: int, kind: str, *members: str, **spec: Any) -> Manifest:
    rows = [{"type": kind, "selector": {"exactMatch": {"name": member}}} for member in members]
    return plain("HyperNode", name, "topology.volcano.sh/v1alpha1", spec={"tier": tier, "members": rows, **spec})


def rack(name: str, *nodes: int) -> Manifest:
    return _hyper_node(name, 1, "Node", *(f"n{number}" for number in nodes), tierName="rack")


def term(selector: Manifest = _X, **fields: Any) -> Manifest:
    return {"podGroupSelector": selector, **({"topologyTier": 1} if "topologyTierName" not in fields else {}), **fields}


def apart(*required: Manifest, preferred: tuple[Manifest, ...] = ()) -> Manifest:
    terms = {"required": list(required), "preferred": list(preferred)}
    return {"podGroupAntiAffinity": {key: rows for key, rows in terms.items() if rows}}


def gang(
    name: str,
    size: int = 1,
    *,
    affinity: Manifest | None = None,
    labels: Manifest | None = None,
    at: tuple[int, ...] = (),
    namespace: str = "",
    **spec: Any,
) -> list[Manifest]:
    """A PodGroup and its pods; `at`: nodes that they select."""
    more: dict[str, Any] = {"topologyAffinity": affinity} if affinity else {}
    group = pod_group(name, members=size, namespace=namespace, **more, **spec)
    group["metadata"]["labels"] = labels or {}
    pods = [pod(f"{name}-{index}", group=name, namespace=namespace) for index in range(size)]
    for each, number in zip(pods, at, strict=False):
        each["spec"]["nodeSelector"] = {"kubernetes.io/hostname": f"n{number}"}
    return [group, *pods]


async def racks_of(cluster: Cluster, name: str, size: int) -> set[str]:
    """The racks of the pods of a gang, once all are bound."""
    nodes = await until_bound(cluster, {f"{name}-{index}" for index in range(size)})
    return {"a" if nodes[f"{name}-{index}"] < "n4" else "b" for index in range(size)}


async def gone(cluster: Cluster, name: str, size: int = 1) -> None:
    """Delete a gang."""
    for index in range(size):
        await cluster.delete("pods", f"{name}-{index}")
    await cluster.delete("podgroups", name)


@pytest.mark.timeout(300)
async def test_a_group_starts_in_a_rack_that_it_shares_with_no_selected_group(cluster: Cluster, daemon: Daemon) -> None:
    await cluster.create_all(gang("anchor", labels={"w": "x"}, at=(0,)))
    await until_bound(cluster, {"anchor-0"})
    scenes: dict[str, list[Manifest]] = {
        "one": gang("one", affinity=apart(term())),
        "preferred": gang("preferred", 2, networkTopology=_RACK, affinity=apart(preferred=(term(weight=100),))),
        "soft": gang("soft", 2, networkTopology={**_RACK, "mode": "soft"}, affinity=apart(term())),
        "named": gang("named", 2, networkTopology={"mode": "hard", "highestTierName": "rack"}, affinity=apart(
            term({"matchExpressions": [_ONE_OF]}, topologyTierName="rack"))),
        "itself": gang("itself", 2, labels={"c": "y"}, networkTopology=_RACK,
                       affinity=apart(term(), term({"matchLabels": {"c": "y"}}))),
    }  # fmt: skip
    for name, manifests in scenes.items():
        size = len(manifests) - 1
        await cluster.create_all(manifests)
        assert await racks_of(cluster, name, size) == {"b"}, name
        await gone(cluster, name, size)
    # A preferred term admits the rack, and the rule of one group is none of the others.
    await cluster.create_all(gang("there", 2, at=(1, 2), affinity=apart(preferred=(term(weight=100),))))
    assert await racks_of(cluster, "there", 2) == {"a"}
    await cluster.create_all(gang("ruled", affinity=apart(term({"matchLabels": {"c": "z"}})), at=(4,)))
    assert await racks_of(cluster, "ruled", 1) == {"b"}
    await cluster.create_all(gang("plain", labels={"c": "z"}, at=(5,)))
    assert await racks_of(cluster, "plain", 1) == {"b"}


@pytest.mark.timeout(300)
async def test_another_label_of_a_group_or_namespace_frees_the_rack(cluster: Cluster, daemon: Daemon) -> None:
    other = await cluster.make_namespace()
    await cluster.patch("namespaces", other, {"metadata": {"labels": {"team": "x"}}})
    await cluster.create_all(gang("anchor", labels={"w": "x"}, at=(0,), namespace=other))

    async def held() -> bool:
        return bool((await cluster.get("pods", "anchor-0", namespace=other))["spec"].get("nodeName"))

    await cluster.wait_until(held, "the anchor to be bound")
    # Without a selector of namespaces a term means its own.
    await cluster.create_all(gang("own", affinity=apart(term()), at=(1,)))
    await until_bound(cluster, {"own-0"})
    team = {"namespaceSelector": {"matchLabels": {"team": "x"}}}
    await cluster.create_all(gang("team", affinity=apart(term(**team)), at=(2,)))
    await until(cluster, "pods", "team-0", status=message("in HyperNode a that holds a group of another namespace"))
    await cluster.patch("namespaces", other, {"metadata": {"labels": {"team": "y"}}})
    await until_bound(cluster, {"team-0"})
    await cluster.create_all(gang("all", affinity=apart(term(namespaceSelector={})), at=(3,)))
    await until(cluster, "pods", "all-0", status=message("in HyperNode a that holds a group of another namespace"))
    await cluster.patch("podgroups", "anchor", {"metadata": {"labels": {"w": None}}}, namespace=other)
    await until_bound(cluster, {"all-0"})


@pytest.mark.timeout(300)
async def test_racks_are_occupied_by_the_nodes_of_pods(
    cluster: Cluster, daemon: Daemon, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await cluster.create_all(gang("anchor", 2, labels={"w": "x"}, at=(0, 4)))
    await until_bound(cluster, {"anchor-0", "anchor-1"})
    # Pods in both racks leave none; a restarted scheduler finds the same.
    await cluster.create_all(gang("wide", 2, networkTopology=_RACK, affinity=apart(term())))
    await until(cluster, "podgroups", "wide", status=message("anchor"))
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CONF, name="second") as second:
        await second.settled()
        assert set(await cluster.bound()) == {"anchor-0", "anchor-1"}
    await cluster.delete("pods", "anchor-1")
    assert await racks_of(cluster, "wide", 2) == {"b"}
    await gone(cluster, "wide", 2)
    # The racks exchange their nodes.
    await cluster.create_all(gang("moved", affinity=apart(term()), at=(1,)))
    await until(cluster, "pods", "moved-0", status=message("in HyperNode a that holds"))
    members = {name: (await cluster.get("hypernodes", name))["spec"]["members"] for name in "ab"}
    await cluster.patch("hypernodes", "a", {"spec": {"members": members["b"]}})
    await cluster.patch("hypernodes", "b", {"spec": {"members": members["a"]}})
    await cluster.create_all(gang("far", affinity=apart(term()), at=(5,)))
    await until_bound(cluster, {"far-0"})
    await daemon.settled()
    assert set(await cluster.bound()) == {
        "anchor-0",
        "far-0",
    }  # the node of the other is in the rack of the anchor still
    # Without a network topology the pods of a group may be in several free racks.
    await gone(cluster, "far")
    await gone(cluster, "anchor", 1)
    await until_bound(cluster, {"moved-0"})
    await cluster.create_all(gang("spread", 6, affinity=apart(term())))
    assert await racks_of(cluster, "spread", 6) == {"a", "b"}
    # A tier that no HyperNode has.
    await cluster.create_all(gang("tier", affinity=apart(term(topologyTierName="zone"))))
    await until(cluster, "pods", "tier-0", status=message("required[0]: no HyperNode has tier zone"))


@pytest.mark.timeout(300)
async def test_a_rack_is_free_for_a_group_once_the_pods_of_the_others_terminate(
    cluster: Cluster, daemon: Daemon
) -> None:
    # Both anchors are in one rack, and the terms exclude it once.
    await cluster.create_all(gang("x", labels={"w": "x"}, at=(0,)))
    await cluster.create_all(gang("y", labels={"w": "y"}, at=(1,)))
    await until_bound(cluster, {"x-0", "y-0"})
    both = apart(term(), term({"matchLabels": {"w": "y"}}))
    await cluster.create_all(gang("both", 2, networkTopology=_RACK, affinity=both))
    assert await racks_of(cluster, "both", 2) == {"b"}
    await gone(cluster, "both", 2)
    # A terminating pod is in no rack; the other one still is. Without a kubelet both stay until the test ends them.
    await cluster.create_all(gang("waits", affinity=both, at=(2,)))
    await until(cluster, "pods", "waits-0", status=message("in HyperNode a that holds"))
    await cluster.delete("pods", "x-0", grace=3600)
    await daemon.settled()
    assert "waits-0" not in await cluster.bound()
    await cluster.delete("pods", "y-0", grace=3600)
    assert (await until_bound(cluster, {"waits-0"}))["waits-0"] == "n2"
    for name in ("x-0", "y-0"):
        assert (await cluster.get("pods", name))["metadata"]["deletionTimestamp"], "the pods still exist"
