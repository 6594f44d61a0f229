"""The scenes of other schedulers, at a hundredth of their size."""

from __future__ import annotations

import pytest

from benchmarks.e2e.peer_scenes import SCENES, hyper_nodes, native, scene_nodes


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_creates_the_objects_that_reach_its_mark(name: str) -> None:
    load = SCENES[name].load(0.01)
    pods = [pod for gang in load.gangs for pod in gang.pods]
    present = [document for document in load.before if document["kind"] == "Pod"]
    reach = {"bound": pods, "evicted": present, "admitted": [gang.group for gang in load.gangs]}[load.mark]
    assert len(reach) == load.reached > 0
    names = [document["metadata"]["name"] for document in (*present, *pods)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", [name for name, scene in SCENES.items() if scene.with_kube_scheduler])
def test_kube_scheduler_gets_the_same_pods_without_our_names(name: str) -> None:
    load = SCENES[name].load(0.01)
    for gang in load.gangs:
        twin = native(gang)
        assert [pod["metadata"]["name"] for pod in twin.pods] == [pod["metadata"]["name"] for pod in gang.pods]
        for pod, own in zip(twin.pods, gang.pods, strict=True):
            assert pod["spec"]["schedulerName"] == "default-scheduler"
            assert pod["spec"]["containers"] == own["spec"]["containers"]
            assert pod["spec"].get("resourceClaims") == own["spec"].get("resourceClaims")
            assert "annotations" not in pod["metadata"]
            assert ("schedulingGroup" in pod["spec"]) == bool(twin.group)
        if twin.group:
            assert twin.group["spec"]["schedulingPolicy"] == {"gang": {"minCount": len(gang.pods)}}
            assert ("schedulingConstraints" in twin.group["spec"]) == (name == "K1")


def test_every_node_is_in_a_rack_with_a_hyper_node() -> None:
    racks = {node["metadata"]["labels"]["topology.kubernetes.io/rack"] for node in scene_nodes(250)}
    assert racks == {document["metadata"]["name"] for document in hyper_nodes(250)}
    assert len(racks) == 3
