"""Quotas of shares of cards."""

from __future__ import annotations

import pytest

from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.framework.explain.queue_uses import queue_uses
from tests.unit.plugins.deviceshare.cluster import CORES, MEMORY, NUMBER, PERCENTAGE, VgpuHarness, conf

_CARD = "  - name: capacity-card\n"
_TREE = "  - {name: capacity, enableHierarchy: true}\n"
_PLUGINS = {
    "proportion": "  - name: proportion\n",
    "rounds": "  - {name: proportion, arguments: {proportion.iterative: true}}\n",
    "capacity": "  - name: capacity\n",
    "tree": _TREE,
    "capacity-card": _CARD,
}
_EACH = pytest.mark.parametrize("plugin", _PLUGINS.values(), ids=_PLUGINS)
_CONFIG_MAP = (
    "object volcano-vgpu-device-config kind=ConfigMap metadata={namespace: kube-system} "
    "data={device-config.yaml: 'nvidia: {%s}'}"
)


def _harness(plugin: str, *statements: str, **capability: dict[str, int]) -> VgpuHarness:
    """Queues with these capabilities, below a queue `top` where the plugin has a tree."""
    h = VgpuHarness(conf(plugins=plugin))
    if plugin == _TREE:
        h.queue("top")
    for name, amounts in capability.items():
        h.queue(name, capability=amounts, parent="top" if plugin == _TREE else None)
    h.do("; ".join(statements))
    return h


def _shares(queue: str, count: int, more: str = "") -> str:
    """Groups of a queue with a pod of 1000 units each."""
    names = [f"{queue}-{index}" for index in range(count)]
    return "; ".join(f"group {queue}/{name}; share {name}/{name} 1000 {more}" for name in names)


def _bound(h: VgpuHarness, prefix: str) -> int:
    return sum(name.startswith(prefix) for name in h.binds)


def _waiting(h: VgpuHarness, *names: str) -> str:
    return next(name for name in names if name not in h.binds)


@pytest.mark.parametrize(
    ("named", "refused"),
    [
        pytest.param(
            {NUMBER: 3},
            f"<{NUMBER}> quota: requested <2000>, total would be <4000>, but capability is <3000>",
            id="number",
        ),
        pytest.param({MEMORY: 3999}, f"<{MEMORY}> quota: requested <2000000>, total would be <4000000>", id="memory"),
        pytest.param({CORES: 79}, f"<{CORES}> quota: requested <40000>, total would be <80000>", id="cores"),
        pytest.param({NUMBER: 4, MEMORY: 4000, CORES: 80}, "", id="equal"),
        pytest.param({}, "", id="not named"),
    ],
)
def test_capacity_card_limits_the_shares_that_a_queue_names(named: dict[str, int], refused: str) -> None:
    """A pod of two cards is charged for both, at enqueue and for each pod."""
    limits = {"cpu": 64, "memory": 1 << 40, **named}
    amounts = f"amounts={NUMBER}:2,{MEMORY}:2000,{CORES}:40"
    at_enqueue = _harness(_CARD, "cards n1 A:10000 B:10000 C:10000", f"group g0,g1 Pending {amounts}", q=limits)
    pods = "; ".join(f"group g{i}; share g{i}/p{i} 1000 number=2 cores=20" for i in range(2))
    at_allocate = _harness(_CARD, "cards n1 A:10000 B:10000 C:10000", pods, q=limits)
    for h in (at_enqueue, at_allocate):
        h.settle()

    phases = sorted(at_enqueue.job(f"g{index}").phase.value for index in range(2))
    assert phases == (["Inqueue", "Pending"] if refused else ["Inqueue", "Inqueue"])
    assert len(at_allocate.binds) == (1 if refused else 2)
    first = "".join(text for index in range(2) for _, text in at_enqueue.event_messages("PodGroup", f"g{index}"))
    second = at_allocate.pod_message(_waiting(at_allocate, "p0", "p1")) if refused else ""
    for message in (first, second):
        assert f"Queue <q> has insufficient {refused}" in message if refused else not message


@pytest.mark.parametrize("phase", ["Pending", "Inqueue"])  # checked at enqueue, and at allocate
@_EACH
def test_a_queue_that_names_shares_limits_them(plugin: str, phase: str) -> None:
    limits = {"cpu": 64, "memory": 1 << 40, NUMBER: 10, MEMORY: 5000, CORES: 100}
    amounts = f"amounts={NUMBER}:1,{MEMORY}:2000,{CORES}:20"
    jobs = [f"group g{i} {phase} {amounts}; share g{i}/p{i} 2000 cores=20" for i in range(3)]
    h = _harness(plugin, "cards n1 A:10000 B:10000 C:10000", *jobs, q=limits)

    h.settle()

    assert len(h.binds) == 2
    phases = [h.job(f"g{index}").phase.value for index in range(3)]
    assert phases.count("Pending") == (1 if phase == "Pending" else 0)
    written = h.state.queues["q"].status_allocated
    assert written is not None
    assert [written[name] // 1000 for name in (NUMBER, MEMORY, CORES)] == [2, 4000, 40]
    assert "vgpu-memory" in h.pod_message(_waiting(h, "p0", "p1", "p2"))


def test_capacity_card_shows_shares_in_whole_units() -> None:
    h = _harness(_CARD, "cards n1 A:10000 B:10000", "group g; share p 1000 number=2 cores=20", q={MEMORY: 6000})
    h.settle()
    (queue,) = [use for use in queue_uses(h.core.snapshot()) if use.name == "q"]
    shown = {use.card: (use.quota, use.allocated, use.free, use.total) for use in queue.cards}
    assert shown == {
        MEMORY: (6000, 2000, 4000, 20000),
        NUMBER: (None, 2, None, 20),
        CORES: (None, 40, None, 200),
    }
    assert queue.warnings == ()


def test_shares_are_counted_anew_when_the_accounting_changes() -> None:
    h = _harness(_CARD, "cards n1 A:10000", f"group g; share p limits={PERCENTAGE}:50", q={MEMORY: 10000})
    h.settle()
    h.do("cards n2 B:4000; node wake")
    h.settle()
    allocated = h.plugin("capacity-card").ledger.queues["q"].own.allocated.cards
    assert allocated[MEMORY] == 5000_000  # of the card that was chosen

    h.do(_CONFIG_MAP % "resourceMemoryName: example.com/memory")
    h.settle()
    allocated = h.plugin("capacity-card").ledger.queues["q"].own.allocated.cards
    assert allocated.get(MEMORY, 0) == 0


# --- queues that name no shares ---------------------------------------------------------------------------------------


@_EACH
@pytest.mark.parametrize("resource", [NUMBER, MEMORY, CORES])
def test_a_minimum_beyond_the_registered_cards_is_admitted_where_the_queue_does_not_name_them(
    plugin: str, resource: str
) -> None:
    groups = (
        f"group q/q,named Pending amounts={resource}:{1 << 29}; group named/named Pending amounts={resource}:{1 << 29}"
    )
    h = _harness(plugin, "cards n1 A:10000", groups, q={}, named={resource: 1 << 30})

    h.settle()

    assert [h.job(queue).phase.value for queue in ("q", "named")] == ["Inqueue", "Inqueue"]


@_EACH
def test_shares_that_no_node_lists_as_amounts_are_admitted_and_percentages_count_nowhere(plugin: str) -> None:
    node = "node n1 resources=volcano.sh/vgpu-number:10 annotations={volcano.sh/node-vgpu-register: '%s'}"
    group = f"group g Pending amounts={NUMBER}:1,{MEMORY}:1000,{CORES}:10,{PERCENTAGE}:50,cpu:1"
    h = _harness(plugin, node % "A,10,10000,NVIDIA,true,hami-core:", group, f"share p limits={PERCENTAGE}:50", q={})

    h.settle()

    assert (h.job("g").phase.value, h.binds) == ("Running", {"p": "n1"})


@_EACH
def test_a_queue_that_names_no_shares_takes_those_that_another_queue_waits_for(plugin: str) -> None:
    shares = (_shares("q", 8, "cores=10"), _shares("other", 8, "cores=10 nodeSelector=zone:none"))
    h = _harness(plugin, "cards n1 A:10000", *shares, q={}, other={})

    h.settle()

    assert (_bound(h, "q"), _bound(h, "other")) == (8, 0)


@_EACH
def test_a_queue_takes_its_named_amounts_independently_of_other_queues(plugin: str) -> None:
    shares = (_shares("other", 9, "nodeSelector=zone:none"), _shares("q", 9))
    h = _harness(plugin, "cards n1 A:10000", *shares, q={MEMORY: 7500}, other={})

    h.settle()

    assert (_bound(h, "q"), _bound(h, "other")) == (7, 0)
    assert MEMORY in h.pod_message(_waiting(h, *(f"q-{index}" for index in range(9))))


@_EACH
def test_pods_on_cards_that_are_not_registered_any_more_limit_nothing(plugin: str) -> None:
    offered = f"resources={MEMORY}:0,{CORES}:0"
    gone = "annotations={volcano.sh/node-vgpu-handshake: Deleted_2026.01.01 00:00:00}"
    old = "share old/old 9000 cores=90 @n1 annotations={volcano.sh/vgpu-ids-new: 'A,NVIDIA,9000,90:'}"
    nodes = f"cards n1 A:10000 {gone} {offered}; cards n2 B:10000 {offered}"
    h = _harness(plugin, nodes, f"group old Running; {old}; group g Pending; share p 5000 cores=50", q={})

    h.settle()

    assert h.binds == {"p": "n2"}


@_EACH
@pytest.mark.parametrize("offered", [None, 0], ids=["", "the kubelet gets more units than it accepts"])
def test_explain_lists_the_shares_that_a_queue_names_whatever_nodes_offer(plugin: str, offered: int | None) -> None:
    amounts = "" if offered is None else f"resources={MEMORY}:{offered},{CORES}:{offered}"
    jobs = "group p; share p/p 1000 cores=10; group waits; share waits/waits 1000 cores=10"
    h = _harness(plugin, f"cards n1 A:10000 B:10000 {amounts}", jobs, q={MEMORY: 1500, CORES: 300})
    h.settle()

    found = diagnose_job(h.core.snapshot(), h.job(_waiting(h, "p", "waits")))

    assert found.queue is not None
    rows = {row.resource: (row.quota, row.used, row.free, row.cluster_total) for row in found.queue.limits}
    assert rows == {MEMORY: (1500, 1000, 500, 20000), CORES: (300, 10, 290, 200)}
    assert found.summary.startswith("Queue q has too little quota left: 1000 of 1500 volcano.sh/vgpu-memory used")


@pytest.mark.parametrize("plugin", [_PLUGINS["proportion"], _PLUGINS["capacity"], _TREE])
def test_guaranteed_shares_are_kept_from_queues_that_do_not_name_them(plugin: str) -> None:
    h = _harness(plugin, "cards n1 A:10000", _shares("q", 8), q={})
    h.queue("other", guarantee={MEMORY: 4000}, parent="top" if plugin == _TREE else None)

    h.settle()

    assert len(h.binds) == 6


def test_without_deviceshare_shares_are_ordinary_amounts_of_the_cluster() -> None:
    h = VgpuHarness(conf(VGPUEnable=False, plugins=_PLUGINS["proportion"]))
    h.do(f"cards n1 A:10000; group q Pending amounts={MEMORY}:10001")

    h.settle()

    assert h.job("q").phase.value == "Pending"


@_EACH
def test_queues_limit_shares_under_the_names_of_the_config_map(plugin: str) -> None:
    names = "resourceCountName: x.io/n, resourceMemoryName: x.io/m, resourceCoreName: x.io/c"
    pods = "; ".join(
        f"group {queue}/{queue}-{i}; pod {queue}-{i}/{queue}-{i} limits=x.io/n:1,x.io/m:1000,x.io/c:5"
        for queue in ("q", "other")
        for i in range(5)
    )
    node = "cards n1 register='A,10,10000,NVIDIA-L40S,true,hami-core:' resources=x.io/n:10"
    h = _harness(plugin, _CONFIG_MAP % names, node, pods, q={"x.io/m": 3500}, other={MEMORY: 1})

    h.settle()

    assert (_bound(h, "q"), _bound(h, "other")) == (3, 5)


@pytest.mark.parametrize("plugin", [_TREE, _CARD], ids=["tree", "capacity-card"])
@pytest.mark.parametrize("declared", [False, True], ids=["allocate", "enqueue"])
def test_the_shares_that_a_parent_names_limit_the_queues_below_it(plugin: str, *, declared: bool) -> None:
    groups = "; ".join(
        f"group {queue}/{queue}-{i} Pending amounts={NUMBER}:1,{MEMORY}:1000"
        for queue in ("q", "other")
        for i in (0, 1)
    )
    h = VgpuHarness(conf(plugins=plugin))
    h.do(f"queue top capability={MEMORY}:2500; cards n1 A:10000; queue q,other parent=top")
    h.do(groups if declared else f"{_shares('q', 2)}; {_shares('other', 2)}")

    h.settle()

    names = ["q-0", "q-1", "other-0", "other-1"]
    admitted = [name for name in names if h.job(name).phase.value != "Pending"]
    assert len(admitted if declared else h.binds) == 2
    if not declared:
        assert MEMORY in h.pod_message(_waiting(h, *names))
