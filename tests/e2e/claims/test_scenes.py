"""Claims on a real cluster: kube-controller-manager makes and releases them, a driver publishes devices, and a kubelet
starts no pod without them. An oracle checks the history of each scene.
"""

from __future__ import annotations

import pytest

from capcard_sched.model import annotations as keys
from tests.controlplane.device_driver import DeviceDriver, device_class
from tests.controlplane.manifests import Manifest, gpu_node, node, plain, pod, pod_group, queue
from tests.e2e.claims.scenes import (
    GPU,
    H100,
    H200,
    NIC,
    World,
    claim,
    claiming,
    exactly,
    finish,
    gang,
    gpu,
    held,
    selected,
    template,
    until_running,
)
from tests.e2e.daemons import CARD_CONF, TIDE_CONF
from tests.e2e.expectations import message, until

pytestmark = pytest.mark.campaign

CAPABILITY = {"cpu": "512", "memory": "512Gi"}
PREEMPT_CONF = CARD_CONF.replace("allocate, backfill", "allocate, preempt, backfill").replace(
    "{name: gang}", "{name: gang, enablePreemptable: false}"
)
MIG = f"{H200}/mig-1g.10gb-mixed"


async def test_a_gang_waits_for_the_devices_of_another_one(world: World) -> None:
    cluster = world.cluster
    await world.nodes("n1", "n2")
    await cluster.create_all([queue("q", cards={H200: 8}, capability=CAPABILITY), template("one")])
    await cluster.create_all(gang("first", 3, "one"))
    async with world.daemon() as daemon:
        first = {f"first-{index}" for index in range(3)}
        await until_running(cluster, first)
        await cluster.create_all(gang("second", 2, "one"))
        await until(cluster, "pods", "second-*", status=message("cannot allocate all claims"))
        assert not [name for name in await held(cluster) if name.startswith("second")]
        await finish(cluster, world.kubelet, first)
        await until_running(cluster, {"second-0", "second-1"})
        await world.end(daemon, "second-0", "second-1")


async def test_one_quota_limits_devices_of_both_kinds_and_chooses_among_models(world: World) -> None:
    """Two H200, one of them by a device plugin, then an H100; the pod after them waits."""
    cluster, driver = world.cluster, world.driver
    await cluster.create_all([node("n1", cpu=64), gpu_node("plugin", H200, 4, cpu=64)])
    await driver.publish("n1", [gpu("a"), gpu("b"), gpu("c", H100), gpu("d", H100)])
    product = f'device.attributes["{GPU}"].productName'
    either = {
        "name": "r",
        "firstAvailable": [
            {"name": "best", "deviceClassName": GPU, **selected(f'{product} == "NVIDIA H200"')},
            {"name": "next", "deviceClassName": GPU, **selected(f'{product} == "NVIDIA H100"')},
        ],
    }
    await cluster.create_all(
        [
            queue("q", cards={H200: 2, H100: 1}, capability=CAPABILITY),
            template("either", either),
            pod("plugin", queue="q", cards=H200, requests={"cpu": 1, "nvidia.com/gpu": 1}),
        ]
    )
    async with world.daemon() as daemon:
        await until_running(cluster, {"plugin"})
        for name, device in (("x", "n1/a"), ("y", "n1/c")):
            await cluster.create(claiming(name, "either", queue="q"))
            await until(cluster, "pods", name, status={"phase": "Running"})
            assert (await held(cluster))[name] == [device]
        await cluster.create(claiming("z", "either", queue="q"))
        await until(cluster, "pods", "z", status=message("quota"))
        await finish(cluster, world.kubelet, ["plugin"])
        await until_running(cluster, {"x", "y", "z"})
        assert (await held(cluster))["z"] == ["n1/b"]
        await world.end(daemon, "x", "y", "z")


async def test_partitions_share_the_counters_of_their_device(world: World) -> None:
    """Seven partitions and the whole device exclude each other; all are charged to the quota of their cards."""
    cluster = world.cluster
    await cluster.create(node("n1", cpu=64))

    def consuming(device: Manifest, memory: str) -> Manifest:
        return {**device, "consumesCounters": [{"counterSet": "s", "counters": {"memory": {"value": memory}}}]}

    mig = gpu("")["attributes"] | {"type": {"string": "mig"}, "profile": {"string": "1g.10gb"}}
    parts = [consuming({"name": f"mig{number}", "attributes": mig}, "10Gi") for number in range(7)]
    counters = [{"name": "s", "counters": {"memory": {"value": "80Gi"}}}]
    await world.driver.publish("n1", [consuming(gpu("whole"), "80Gi"), *parts], counters=counters)
    kind = f'device.attributes["{GPU}"].type'
    await cluster.create_all(
        [
            queue("q", cards={H200: 1, MIG: 6}, capability=CAPABILITY),
            template("part", exactly(**selected(f'{kind} == "mig"'))),
            template("whole", exactly(**selected(f'{kind} == "gpu"'))),
            *(claiming(f"p{number}", "part", queue="q") for number in range(7)),
        ]
    )
    async with world.daemon() as daemon:
        await until(cluster, "pods", count=6, status={"phase": "Running"})
        await until(cluster, "pods", count=1, status=message("quota"))
        pods = await cluster.list("pods")
        running = {each["metadata"]["name"] for each in pods if each["status"]["phase"] == "Running"}
        await cluster.create(claiming("w", "whole", queue="q"))
        await until(cluster, "pods", "w", status=message("cannot allocate all claims"))
        (waiting,) = {each["metadata"]["name"] for each in pods} - running
        await cluster.delete("pods", waiting)
        await finish(cluster, world.kubelet, running)
        await until_running(cluster, {"w"})
        await world.end(daemon, "w")


async def test_shares_of_a_device_fit_its_capacity(world: World) -> None:
    """Of 10 units, 3 and 4 are in use: another 4 wait, 3 do not."""
    cluster = world.cluster
    await cluster.create_all([node("n1", cpu=64), device_class(NIC), queue("q", capability=CAPABILITY)])
    policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
    shared = {"name": "nic", "allowMultipleAllocations": True, "capacity": {"bandwidth": {"value": "10"}}}
    shared["capacity"]["bandwidth"]["requestPolicy"] = policy  # type: ignore[index]
    async with DeviceDriver(cluster.control_plane, NIC) as driver:
        await driver.publish("n1", [shared])
        for size in (3, 4):
            await cluster.create(template(f"t{size}", exactly(NIC, capacity={"requests": {"bandwidth": str(size)}})))
        async with world.daemon() as daemon:
            for name, size in (("a", 3), ("b", 4)):
                await cluster.create(claiming(name, f"t{size}", queue="q"))
            await until_running(cluster, {"a", "b"})
            await cluster.create(claiming("c", "t4", queue="q"))
            await until(cluster, "pods", "c", status=message("cannot allocate all claims"))
            await cluster.create(claiming("d", "t3", queue="q"))
            await until_running(cluster, {"a", "b", "d"})
            await finish(cluster, world.kubelet, ["b"])
            await until_running(cluster, {"a", "c", "d"})
            await world.end(daemon, "a", "c", "d")


async def test_a_device_is_prepared_before_its_pod_is_bound(world: World) -> None:
    cluster, driver = world.cluster, world.driver
    driver.paused = True
    await cluster.create_all([node("n1", cpu=64), queue("q", cards={H200: 1}, capability=CAPABILITY), template("one")])
    attached = gpu("g0", bindingConditions=["Attached"], bindingFailureConditions=["Broken"])
    await driver.publish("n1", [attached])
    await cluster.create(claiming("p", "one", queue="q"))
    async with world.daemon() as daemon:
        await until(cluster, "events", reason="BindingConditionsPending", within=120)
        assert await cluster.bound() == {}
        assert (await held(cluster))["p"] == ["n1/g0"]
        driver.paused = False
        await until_running(cluster, {"p"})
        await daemon.until_metric("capcard_dra_binding_conditions_seconds_count", 1, result="ready")
        await world.end(daemon, "p")


async def test_pods_of_a_gang_share_a_claim(world: World) -> None:
    """A claim of several consumers is released when the last one ends."""
    cluster = world.cluster
    await cluster.create_all([node("n1", cpu=64), node("n2", cpu=64), device_class(NIC)])
    async with DeviceDriver(cluster.control_plane, NIC) as driver:
        for name in ("n1", "n2"):
            await driver.publish(name, [{"name": "nic"}])
        await cluster.create_all([queue("q", capability=CAPABILITY), claim("shared", exactly(NIC))])
        members = [claiming(f"g-{index}", claims=["shared"], group="g") for index in range(3)]
        await cluster.create_all([pod_group("g", queue="q", members=3), *members])
        async with world.daemon() as daemon:
            assert len(set((await until_running(cluster, {"g-0", "g-1", "g-2"})).values())) == 1
            await world.kubelet.finish("g-0", namespace=cluster.namespace)
            await until(cluster, "resourceclaims", "shared", status={"reservedFor": [{"name": "g-1"}, {"name": "g-2"}]})
            await world.end(daemon, "g-1", "g-2")


async def test_pods_share_a_claim_within_the_quota_of_their_queue(world: World) -> None:
    """A claim of pods counts once, also after a restart, until the last one ends. Then another queue gets it."""
    cluster = world.cluster
    await world.nodes("n1", devices=4)
    await cluster.create_all([queue("q", cards={H200: 2}, capability=CAPABILITY), template("one")])
    await cluster.create_all(
        [queue("other", cards={H200: 1}, capability=CAPABILITY), claim("shared", exactly()), claim("own", exactly())]
    )
    members = [claiming(f"g-{index}", claims=["shared"], group="g") for index in range(3)]
    await cluster.create_all([pod_group("g", queue="q", members=3), *members])
    running = {"g-0", "g-1", "g-2", "x", "y"}
    async with world.daemon() as daemon:
        await until_running(cluster, running - {"x", "y"})
        await cluster.create_all(
            [claiming("x", claims=["shared"], queue="q"), claiming("y", claims=["own"], queue="q")]
        )
        await until_running(cluster, running)
        await cluster.create_all(
            [claiming("waits", "one", queue="q"), claiming("late", claims=["shared"], queue="other")]
        )
        await until(cluster, "pods", "waits", status=message("quota"))
        await until(cluster, "pods", "late", status=message("is charged to queue q"))
        assert await daemon.stop() == 0
    async with world.daemon() as daemon:
        for name in ("g-0", "g-1", "g-2"):  # the claim has the gang's first pod as first consumer
            await world.kubelet.finish(name, namespace=cluster.namespace)
        await until(cluster, "resourceclaims", "shared", status={"reservedFor": [{"name": "x"}]})
        await until(cluster, "pods", "waits", status=message("quota"))
        assert not (await cluster.get("pods", "late"))["spec"].get("nodeName")
        await world.kubelet.finish("x", namespace=cluster.namespace)
        await until_running(cluster, {"y", "waits", "late"})
        await world.end(daemon, "y", "waits", "late")


async def test_a_pod_has_devices_of_two_cards(world: World) -> None:
    """Both are charged, also after a restart."""
    cluster, driver = world.cluster, world.driver
    await cluster.create(node("n1", cpu=64))
    await driver.publish("n1", [gpu("a"), gpu("b"), gpu("c", H100), gpu("d", H100)])
    product = f'device.attributes["{GPU}"].productName'
    small, large = (exactly(**selected(f'{product} == "NVIDIA {model}"')) for model in ("H100", "H200"))
    await cluster.create_all([queue("q", cards={H200: 2, H100: 1}, capability=CAPABILITY)])
    await cluster.create_all([template("small", small), template("large", large)])
    await cluster.create(claiming("both", "small", "large", queue="q"))
    async with world.daemon() as daemon:
        await until_running(cluster, {"both"})
        assert sorted((await held(cluster))["both"]) == ["n1/a", "n1/c"]
        assert await daemon.stop() == 0
    await cluster.create_all([claiming("one", "large", queue="q"), claiming("waits", "small", queue="q")])
    async with world.daemon() as daemon:
        await until_running(cluster, {"both", "one"})
        await until(cluster, "pods", "waits", status=message("quota"))
        await finish(cluster, world.kubelet, ["both"])
        await until_running(cluster, {"one", "waits"})
        await world.end(daemon, "one", "waits")


async def test_a_preemptor_gets_the_devices_of_its_victims(world: World) -> None:
    cluster = world.cluster
    await world.nodes("n1", "n2")
    low = plain("PriorityClass", "low", "scheduling.k8s.io/v1", value=1)
    high = plain("PriorityClass", "high", "scheduling.k8s.io/v1", value=1000)
    await cluster.create_all([low, high, queue("q", cards={H200: 8}, capability=CAPABILITY), template("one")])
    lows = [claiming(f"low-{index}", "one", queue="q", priorityClassName="low") for index in range(4)]
    await cluster.create_all(lows)
    async with world.daemon(PREEMPT_CONF) as daemon:
        await until_running(cluster, {f"low-{index}" for index in range(4)})
        two = [exactly(count=2)]
        await cluster.create(template("two", *two))
        await cluster.create(claiming("high", "two", queue="q", priorityClassName="high"))
        where = (await until(cluster, "pods", "high", within=120, status={"phase": "Running"}))["spec"]["nodeName"]
        assert sorted((await held(cluster))["high"]) == [f"{where}/g0", f"{where}/g1"]
        left = {each["metadata"]["name"] for each in await cluster.list("pods")}
        assert len(left) == 3  # the two on the other node stay
        await until_running(cluster, left)
        await world.end(daemon, *left)


async def test_inference_reclaims_the_devices_of_training(world: World) -> None:
    cluster = world.cluster
    await world.nodes("n1", "n2")
    await cluster.create_all(
        [
            queue("qi", cards={H200: 4}, priority=80000, reclaimable=False),
            queue("qt", cards={H200: 4}, priority=20000, reclaimable=True),
            template("one"),
        ]
    )

    def members(name: str, service: str, count: int) -> list[Manifest]:
        notes = {keys.SERVICE_TYPE: service}
        group = pod_group(name, queue=f"q{service[0]}", members=1, annotations=notes)
        return [group, *(claiming(f"{name}-{index}", "one", group=name, grace=600) for index in range(count))]

    await cluster.create_all(members("training", "training", 4))
    async with world.daemon(TIDE_CONF) as daemon:
        await until_running(cluster, {f"training-{index}" for index in range(4)})
        await cluster.create_all(members("inference", "inference", 2))
        for index in range(2):
            await until(cluster, "pods", f"inference-{index}", within=120, status={"phase": "Running"})
        left = {each["metadata"]["name"] for each in await cluster.list("pods")}
        assert len(left) == 4
        await until_running(cluster, left)
        await world.end(daemon, *left)
