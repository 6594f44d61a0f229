"""Shared cards over random days: pods and gangs come and go, nodes change, the scheduler starts anew."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from capcard_sched.model import annotations as keys
from capcard_sched.model.card_registration import RegisteredCard
from capcard_sched.plugins.deviceshare.device_choice import DeviceChoice, choose_cards
from tests.unit.plugins.deviceshare.cluster import VgpuHarness, conf
from tests.unit.plugins.deviceshare.worlds import A100_40, L40S

NODES = ("n1", "n2", "n3")
CARDS = (
    RegisteredCard("", 3, 10000, L40S, healthy=True, mode="hami-core"),
    RegisteredCard("", 10, 40536, A100_40, healthy=True, mode="mig"),
    RegisteredCard("", 2, 500, L40S, healthy=True, mode="hami-core"),
)
NODE = st.lists(st.sampled_from(CARDS), min_size=1, max_size=3)
POD = st.tuples(
    st.sampled_from([None, 100, 500, 3000, 5000, 9000]),
    st.integers(1, 2),
    st.sampled_from([None, 0, 30, 100]),
    st.sampled_from([{}, {}, {keys.VGPU_MODE: "mig"}, {keys.VGPU_PODGROUP_POLICY: "spread"}]),
)
POLICY = st.sampled_from(["binpack", "spread", "none"])
EVENT = st.one_of(
    st.tuples(st.just("gang"), st.lists(POD, min_size=1, max_size=4)),
    st.tuples(st.just("delete"), st.integers(0, 50)),
    st.tuples(st.just("terminate"), st.integers(0, 50)),
    st.tuples(st.just("finish"), st.integers(0, 50)),
    st.tuples(st.just("node"), st.tuples(st.sampled_from(NODES), NODE)),
    st.tuples(st.just("restart"), st.none()),
)


def _start(policy: str, nodes: dict[str, list[RegisteredCard]]) -> VgpuHarness:
    harness = VgpuHarness(conf(SchedulePolicy=policy, ScheduleWeight=3), run=True)
    for name, cards in nodes.items():
        _node(harness, name, cards)
    return harness


def _node(harness: VgpuHarness, name: str, cards: list[RegisteredCard]) -> None:
    harness.cards(name, *(card._replace(uuid=f"{name}-{index}") for index, card in enumerate(cards)))


@settings(max_examples=settings().max_examples // 3)
@given(POLICY, st.fixed_dictionaries(dict.fromkeys(NODES, NODE)), st.lists(EVENT, max_size=8), st.booleans())
def test_the_ledger_matches_the_pods_after_any_sequence_of_operations(
    policy: str, nodes: dict[str, list[RegisteredCard]], events: list[tuple[str, Any]], renumbers: bool
) -> None:
    h = _start(policy, nodes)
    if renumbers:  # the states in every session, and answers are dropped as soon as there are any
        plugin = h.plugin("deviceshare")
        plugin.rows.most_empty = plugin.cache.least = 0
    groups: dict[str, int] = {}
    shrunk = False
    for number, (kind, value) in enumerate(events):
        alive = sorted(h._pods)
        if kind == "gang":
            groups[f"g{number}"] = len(value)
            h.group(f"g{number}", min_member=len(value))
            for index, (memory, count, cores, notes) in enumerate(value):
                h.share(f"g{number}-{index}", memory, number=count, cores=cores, annotations=notes, group=f"g{number}")
        elif kind == "node":
            nodes[value[0]] = value[1]
            shrunk = True  # bound pods may exceed the new cards
            _node(h, *value)
        elif kind == "restart":
            h = _restart(h, policy, nodes, groups)
        elif alive:
            name = alive[value % len(alive)].partition("/")[2]
            match kind:
                case "delete":
                    h.delete_pod(name)
                case "terminate":
                    h.terminate(name)
                case "finish" if h._pods[f"default/{name}"]["spec"].get("nodeName"):
                    h.set_phase(name, "Succeeded")
        h.step()
        h.step()
        _check(h, policy, nodes, groups, shrunk=shrunk)


def _restart(
    h: VgpuHarness, policy: str, nodes: dict[str, list[RegisteredCard]], groups: dict[str, int]
) -> VgpuHarness:
    """A scheduler that starts from the objects alone."""
    fresh = _start(policy, nodes)
    for name, members in groups.items():
        fresh.group(name, min_member=members)
    fresh._births = dict(h._births)
    fresh._pods = h._pods
    for key in h._pods:
        fresh._deltas.append(h.pod_changed(key))
    return fresh


def _check(
    h: VgpuHarness, policy: str, nodes: dict[str, list[RegisteredCard]], groups: dict[str, int], *, shrunk: bool
) -> None:
    assert not h.last_session.results.report.errors
    plugin = h.plugin("deviceshare")
    ledgers = {name: devices.ledgers[0] for name, devices in plugin.rows.by_node.items()}
    for name, ledger in ledgers.items():
        for card in ledger.cards:
            assert min(card.use.number, card.use.memory, card.use.cores) >= 0
            if not shrunk:
                assert card.use.number <= card.model.slots
                assert card.used_memory <= card.model.memory
                assert card.use.cores <= 100
        row = h.state.nodes.by_name[name].row
        assert plugin.rows.states.cards_of(plugin.rows.numbers[row]) == (ledger.cards,)
    fresh = _restart(h, policy, nodes, groups)
    fresh.session()
    rebuilt = fresh.plugin("deviceshare").rows.by_node
    for name, ledger in ledgers.items():
        assert set(rebuilt[name].ledgers[0].held) == set(ledger.held)
        if not shrunk:
            assert [card.use for card in rebuilt[name].ledgers[0].cards] == [card.use for card in ledger.cards]
    if not shrunk:
        _check_waiting(h, ledgers)


def _check_waiting(h: VgpuHarness, ledgers: dict[str, Any]) -> None:
    """A pod alone in its group waits only while no node takes it."""
    plugin = h.plugin("deviceshare")
    number = h.state.columns.column("volcano.sh/vgpu-number")
    for task in h.state.tasks.values():
        if task.node is not None or task.status.name != "PENDING" or task.job is None or task.job.min_available != 1:
            continue
        request = plugin.types[0].request_of(task.cls)
        for name, ledger in ledgers.items():
            row = h.state.nodes.by_name[name].row
            table = h.state.nodes
            if table.allocatable[row, number] - table.used[row, number] < task.cls.request[number]:
                continue
            closed = plugin.types[0].closed_cards(request, ledger, task.job.tasks.keys())
            assert not isinstance(choose_cards(ledger.cards, request, "binpack", closed), DeviceChoice)
