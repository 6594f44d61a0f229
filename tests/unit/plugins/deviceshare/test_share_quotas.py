"""Quotas of shares of cards."""

from __future__ import annotations

import msgspec
import pytest

from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.framework.explain.queue_uses import queue_uses
from capcard_sched.model import annotations as keys
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.objects import ConfigMapObject
from tests.unit.plugins.deviceshare.cluster import MEMORY, NUMBER, PERCENTAGE, VgpuHarness, conf

CORES = "volcano.sh/vgpu-cores"


@pytest.mark.parametrize(
    ("named", "refused"),
    [
        (
            {NUMBER: 3},
            "<volcano.sh/vgpu-number> quota: requested <2000>, total would be <4000>, but capability is <3000>",
        ),
        ({MEMORY: 3999}, "<volcano.sh/vgpu-memory> quota: requested <2000000>, total would be <4000000>"),
        ({CORES: 79}, "<volcano.sh/vgpu-cores> quota: requested <40000>, total would be <80000>"),
        ({NUMBER: 4, MEMORY: 4000, CORES: 80}, ""),
        ({}, ""),
    ],
    ids=["number", "memory", "cores", "equal", "not named"],
)
@pytest.mark.parametrize("declared", [False, True], ids=["allocate", "enqueue"])
def test_capacity_card_limits_the_shares_that_a_queue_names(
    named: dict[str, int], refused: str, *, declared: bool
) -> None:
    """A pod of two cards is charged for both, at enqueue and for each pod."""
    h = VgpuHarness(conf(plugins="  - name: capacity-card\n"))
    h.queue("q", capability={"cpu": "64", "memory": "256Gi", **named})
    h.cards("n1", "A:10000", "B:10000", "C:10000")
    for index in range(2):
        minimum = {NUMBER: 2, MEMORY: 2000, CORES: 40} if declared else None
        h.group(f"g{index}", min_resources=minimum, phase="Pending" if declared else "Inqueue")
        if not declared:
            h.share(f"p{index}", 1000, number=2, cores=20, group=f"g{index}")

    h.settle()

    if declared:
        phases = sorted(h.job(f"g{index}").phase.value for index in range(2))
        assert phases == (["Inqueue", "Pending"] if refused else ["Inqueue", "Inqueue"])
        message = "".join(text for index in range(2) for _, text in h.event_messages("PodGroup", f"g{index}"))
    else:
        assert len(h.binds) == (1 if refused else 2)
        message = "".join(h.pod_message(f"p{index}") or "" for index in range(2) if f"p{index}" not in h.binds)
    assert f"Queue <q> has insufficient {refused}" in message if refused else not message


def test_capacity_card_shows_shares_in_whole_units() -> None:
    h = VgpuHarness(conf(plugins="  - name: capacity-card\n"))
    h.queue("q", capability={MEMORY: 6000})
    h.cards("n1", "A:10000", "B:10000")
    h.group("g")
    h.share("p", 1000, number=2, cores=20)
    h.settle()
    (queue,) = [use for use in queue_uses(h.core.snapshot()) if use.name == "q"]
    shown = {use.card: (use.quota, use.allocated, use.free, use.total) for use in queue.cards}
    assert shown == {
        MEMORY: (6000, 2000, 4000, 20000),
        NUMBER: (None, 2, None, 20),
        CORES: (None, 40, None, 200),
    }
    assert queue.warnings == ()
    written = h.state.queues["q"].status_allocated
    assert written is not None
    assert [written[name] // 1000 for name in (MEMORY, NUMBER, CORES)] == [2000, 2, 40]


def test_shares_are_counted_anew_when_the_accounting_changes() -> None:
    h = VgpuHarness(conf(plugins="  - name: capacity-card\n"))
    h.queue("q", capability={MEMORY: 10000})
    h.cards("n1", "A:10000")
    h.group("g")
    h.share("p", limits={PERCENTAGE: 50})
    h.settle()
    h.cards("n2", "B:4000")
    h.node("wake")
    h.settle()
    allocated = h.plugin("capacity-card").ledger.queues["q"].own.allocated.cards
    assert allocated[MEMORY] == 5000_000  # of the card that was chosen

    metadata = {"name": "volcano-vgpu-device-config", "namespace": "kube-system"}
    data = {"device-config.yaml": "nvidia: {resourceMemoryName: example.com/memory}"}
    h.apply(ObjectChanged(msgspec.convert({"metadata": metadata, "data": data}, ConfigMapObject)))
    h.settle()
    allocated = h.plugin("capacity-card").ledger.queues["q"].own.allocated.cards
    assert allocated.get(MEMORY, 0) == 0


# --- queues that name no shares ---------------------------------------------------------------------------------------

_CAPACITY_TREE = "  - {name: capacity, enableHierarchy: true}\n"
_PLUGINS = pytest.mark.parametrize(
    "plugin",
    [
        "  - name: proportion\n",
        "  - {name: proportion, arguments: {proportion.iterative: true}}\n",
        "  - name: capacity\n",
        _CAPACITY_TREE,
        "  - name: capacity-card\n",
    ],
    ids=["proportion", "rounds", "capacity", "tree", "capacity-card"],
)


def _queues(h: VgpuHarness, plugin: str, **capability: dict[str, int]) -> None:
    """Queues with these capabilities, below a queue `top` where the plugin has a tree."""
    parent = "top" if plugin == _CAPACITY_TREE else None
    if parent:
        h.queue(parent)
    for name, amounts in capability.items():
        h.queue(name, capability=amounts, parent=parent)


def _selector(queue: str) -> dict[str, str]:
    """Pods of queue `other` fit on no node."""
    return {"zone": "none"} if queue == "other" else {}


def _bound(h: VgpuHarness, prefix: str) -> int:
    return sum(name.startswith(prefix) for name in h.binds)


@_PLUGINS
@pytest.mark.parametrize("resource", [NUMBER, MEMORY, CORES])
def test_a_minimum_beyond_the_registered_cards_is_admitted_where_the_queue_does_not_name_them(
    plugin: str, resource: str
) -> None:
    h = VgpuHarness(conf(plugins=plugin))
    _queues(h, plugin, q={}, named={resource: 1 << 30})
    h.cards("n1", "A:10000")
    for queue in ("q", "named"):
        h.group(queue, queue=queue, phase="Pending", min_resources={resource: 1 << 29})

    h.settle()

    assert [h.job(queue).phase.value for queue in ("q", "named")] == ["Inqueue", "Inqueue"]


@_PLUGINS
def test_a_minimum_of_shares_that_no_node_lists_as_amounts_is_admitted(plugin: str) -> None:
    h = VgpuHarness(conf(plugins=plugin))
    _queues(h, plugin, q={})
    h.node("n1", resources={NUMBER: 10}, annotations={keys.NODE_VGPU_REGISTER: "A,10,10000,NVIDIA,true,hami-core:"})
    h.group("g", phase="Pending", min_resources={NUMBER: 1, MEMORY: 1000, CORES: 10})

    h.settle()

    assert h.job("g").phase.value == "Inqueue"


@_PLUGINS
def test_a_queue_that_names_no_shares_takes_those_that_another_queue_waits_for(plugin: str) -> None:
    h = VgpuHarness(conf(plugins=plugin))
    _queues(h, plugin, q={}, other={})
    h.cards("n1", "A:10000")
    for queue in ("q", "other"):
        for index in range(8):
            h.group(f"{queue}-{index}", queue=queue)
            h.share(f"{queue}-{index}", 1000, cores=10, group=f"{queue}-{index}", nodeSelector=_selector(queue))

    h.settle()

    assert (_bound(h, "q"), _bound(h, "other")) == (8, 0)


@_PLUGINS
def test_a_queue_takes_its_named_amounts_independently_of_other_queues(plugin: str) -> None:
    h = VgpuHarness(conf(plugins=plugin))
    _queues(h, plugin, q={MEMORY: 7500}, other={})
    h.cards("n1", "A:10000")
    for queue in ("other", "q"):
        for index in range(9):
            h.group(f"{queue}-{index}", queue=queue)
            h.share(f"{queue}-{index}", 1000, group=f"{queue}-{index}", nodeSelector=_selector(queue))

    h.settle()

    assert (_bound(h, "q"), _bound(h, "other")) == (7, 0)
    waiting = next(f"q-{index}" for index in range(9) if f"q-{index}" not in h.binds)
    assert MEMORY in h.pod_message(waiting)


@_PLUGINS
def test_pods_on_cards_that_are_not_registered_any_more_limit_nothing(plugin: str) -> None:
    h = VgpuHarness(conf(plugins=plugin))
    _queues(h, plugin, q={})
    gone = {keys.NODE_VGPU_HANDSHAKE: "Deleted_2026.01.01 00:00:00"}
    h.cards("n1", "A:10000", annotations=gone, resources={MEMORY: 0, CORES: 0})
    h.cards("n2", "B:10000", resources={MEMORY: 0, CORES: 0})
    h.group("old", phase="Running")
    h.share("old", 9000, cores=90, group="old", node="n1", annotations={keys.VGPU_IDS: "A,NVIDIA,9000,90:"})
    h.group("g", phase="Pending")
    h.share("p", 5000, cores=50)

    h.settle()

    assert h.binds == {"p": "n2"}


@_PLUGINS
def test_explain_lists_the_shares_that_a_queue_names(plugin: str) -> None:
    h = VgpuHarness(conf(plugins=plugin))
    _queues(h, plugin, q={MEMORY: 1500, CORES: 300})
    h.cards("n1", "A:10000", "B:10000")
    for name in ("p", "waits"):
        h.group(name)
        h.share(name, 1000, cores=10, group=name)
    h.settle()
    waiting = next(name for name in ("p", "waits") if name not in h.binds)

    found = diagnose_job(h.core.snapshot(), h.job(waiting))

    assert found.queue is not None
    rows = {row.resource: (row.quota, row.used, row.free, row.cluster_total) for row in found.queue.limits}
    assert rows == {MEMORY: (1500, 1000, 500, 20000), CORES: (300, 10, 290, 200)}
    assert found.summary.startswith("Queue q has too little quota left: 1000 of 1500 volcano.sh/vgpu-memory used")


@pytest.mark.parametrize("plugin", ["  - name: proportion\n", "  - name: capacity\n", _CAPACITY_TREE])
def test_guaranteed_shares_are_kept_from_queues_that_do_not_name_them(plugin: str) -> None:
    h = VgpuHarness(conf(plugins=plugin))
    _queues(h, plugin, q={})
    h.queue("other", guarantee={MEMORY: 4000}, parent="top" if plugin == _CAPACITY_TREE else None)
    h.cards("n1", "A:10000")
    for index in range(8):
        h.group(f"g{index}")
        h.share(f"p{index}", 1000, group=f"g{index}")

    h.settle()

    assert len(h.binds) == 6


def test_without_deviceshare_shares_are_ordinary_amounts_of_the_cluster() -> None:
    h = VgpuHarness(conf(VGPUEnable=False, plugins="  - name: proportion\n"))
    h.cards("n1", "A:10000")
    h.group("q", phase="Pending", min_resources={MEMORY: 10001})

    h.settle()

    assert h.job("q").phase.value == "Pending"


@_PLUGINS
def test_queues_limit_shares_under_the_names_of_the_config_map(plugin: str) -> None:
    h = VgpuHarness(conf(plugins=plugin))
    names = {"resourceCountName": "x.io/n", "resourceMemoryName": "x.io/m", "resourceCoreName": "x.io/c"}
    text = "nvidia:\n" + "".join(f"  {key}: {name}\n" for key, name in names.items())
    metadata = {"name": "volcano-vgpu-device-config", "namespace": "kube-system"}
    h.apply(
        ObjectChanged(msgspec.convert({"metadata": metadata, "data": {"device-config.yaml": text}}, ConfigMapObject))
    )
    _queues(h, plugin, q={"x.io/m": 3500}, other={MEMORY: 1})
    register = "A,10,10000,NVIDIA-L40S,true,hami-core:"
    h.cards("n1", register=register, resources={"x.io/n": 10})
    for queue in ("q", "other"):
        for index in range(5):
            h.group(f"{queue}-{index}", queue=queue)
            limits = {"x.io/n": 1, "x.io/m": 1000, "x.io/c": 5}
            h.pod(f"{queue}-{index}", group=f"{queue}-{index}", limits=limits)

    h.settle()

    assert (_bound(h, "q"), _bound(h, "other")) == (3, 5)


@pytest.mark.parametrize("plugin", [_CAPACITY_TREE, "  - name: capacity-card\n"], ids=["tree", "capacity-card"])
@pytest.mark.parametrize("declared", [False, True], ids=["allocate", "enqueue"])
def test_the_shares_that_a_parent_names_limit_the_queues_below_it(plugin: str, *, declared: bool) -> None:
    h = VgpuHarness(conf(plugins=plugin))
    h.queue("top", capability={MEMORY: 2500})
    h.cards("n1", "A:10000")
    for queue in ("q", "other"):
        h.queue(queue, parent="top")
        for index in range(2):
            minimum = {NUMBER: 1, MEMORY: 1000} if declared else None
            phase = "Pending" if declared else "Inqueue"
            h.group(f"{queue}-{index}", queue=queue, min_resources=minimum, phase=phase)
            if not declared:
                h.share(f"{queue}-{index}", 1000, group=f"{queue}-{index}")

    h.settle()

    groups = [f"{queue}-{index}" for queue in ("q", "other") for index in range(2)]
    admitted = [name for name in groups if h.job(name).phase.value != "Pending"]
    assert len(admitted if declared else h.binds) == 2
    if not declared:
        (waiting, *_) = [name for name in groups if name not in h.binds]
        assert MEMORY in h.pod_message(waiting)


@_PLUGINS
def test_explain_does_not_compare_shares_with_the_amounts_of_nodes(plugin: str) -> None:
    """A kubelet that gets more units of memory than it accepts offers 0 of them, and the pods fit all the same."""
    h = VgpuHarness(conf(plugins=plugin))
    _queues(h, plugin, q={MEMORY: 1500})
    h.cards("n1", "A:10000", resources={MEMORY: 0, CORES: 0})
    for name in ("p", "waits"):
        h.group(name)
        h.share(name, 1000, cores=10, group=name)
    h.settle()
    waiting = next(name for name in ("p", "waits") if name not in h.binds)

    found = diagnose_job(h.core.snapshot(), h.job(waiting))

    assert found.summary.startswith("Queue q has too little quota left: 1000 of 1500 volcano.sh/vgpu-memory used")
