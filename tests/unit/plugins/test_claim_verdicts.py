"""Kept results of the search for devices equal fresh ones, whatever happened to devices, slices and nodes before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.claim_objects import CLAIMED, arriving, present
from benchmarks.claims import claims_core, running
from benchmarks.measure import Session
from benchmarks.workloads import START
from capcard_sched.devices.allocator import NodeError
from capcard_sched.devices.claims import AllocationError
from capcard_sched.framework.api.node_view import Diagnosis, FilterResult, NodeView
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.deltas import ObjectChanged, ObjectGone
from capcard_sched.model.device_objects import DeviceClassObject, ResourceClaimObject, ResourceSliceObject
from capcard_sched.model.intents import Bind
from capcard_sched.model.job import Job, Node, Task
from capcard_sched.plugins.predicates.claim_rules import ClaimRules
from capcard_sched.plugins.predicates.claim_verdicts import ClaimVerdicts, DeviceSearch
from capcard_sched.testing import Harness
from tests.lines import executed_lines
from tests.unit.devices.pools import claim, decode
from tests.unit.devices.random_nodes import MOVES, NODES, RandomNodes


@settings(max_examples=2 * settings().max_examples)
@given(st.integers(0, 2**32 - 1))
def test_a_kept_result_is_that_of_a_new_search(seed: int) -> None:
    cluster, kept = RandomNodes(seed), ClaimVerdicts()
    search = DeviceSearch((b"content",), cluster.pools.inventory, cluster.pools.ledger, cluster.search)
    for _ in range(MOVES):
        expected = cluster.fresh()
        for result, places in ((FilterResult(NODES), None), (Diagnosis(NODES), np.arange(NODES))):
            view = NodeView(cluster.table, np.arange(NODES), whole=True)
            kept.reject(search, view, result, places)
            assert result.ok.tolist() == expected.ok.tolist()
            if isinstance(result, Diagnosis):
                assert list(result.reasons.items()) == list(expected.reasons.items())
                assert result.codes.tolist() == expected.codes.tolist()
        view = NodeView(cluster.table, np.arange(NODES), whole=True)
        preferences = kept.preferences(search, view)
        found = [cluster.search(node) for node in cluster.table.nodes]
        alone = kept.reads_single_nodes(
            search, cluster.table, lambda node: cluster.allocator(node).may_fail(cluster.plans())
        )
        assert not (alone and any(isinstance(each, AllocationError) for each in found))
        if not any(isinstance(each, AllocationError) for each in found):
            assert preferences.tolist() == [each if isinstance(each, int) else 0 for each in found]
        _check_solutions(cluster, kept, search)
        _check_further_pods(cluster, kept, search)
        cluster.step()


def _history(scene: str, moves: list[tuple[int, int]]) -> list[tuple[str, str, Any]]:
    """What a core binds while pods with claims arrive and end: pod, node and devices."""
    core, first, found = claims_core(scene, 6), 0, []
    pods: dict[str, list[ObjectGone]] = {}
    for number, (arrivals, ends) in enumerate(moves):
        deltas = [*arriving(scene, arrivals * CLAIMED[scene], first, alone=True)]
        first += arrivals * CLAIMED[scene]
        for name in sorted(pods)[:ends]:
            for gone in pods.pop(name):
                core.apply(gone)
        result = core.step(deltas, START + 200 + number)
        assert not result.report.errors
        binds = [each for each in result.intents if isinstance(each, Bind)]
        found += [(bind.name, bind.node, bind.claims) for bind in binds]
        for delta in running(deltas, Session(0, 0, binds)):
            core.apply(delta)
        for bind in binds:
            claim = f"{bind.name}-gpu-x"
            pods[bind.name] = [
                ObjectGone("Pod", "default", bind.name), ObjectGone("ResourceClaim", "default", claim)
            ]  # fmt: skip
    return found


@pytest.mark.parametrize("scene", ["D1", "D2", "D3"])
@settings(max_examples=max(1, settings().max_examples // 10))
@given(moves=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), min_size=1, max_size=6))
def test_pods_get_the_devices_of_a_search_on_all_nodes(scene: str, moves: list[tuple[int, int]]) -> None:
    found = _history(scene, moves)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClaimRules, "reads_single_nodes", lambda *_: False)
        assert _history(scene, moves) == found


def _check_solutions(cluster: RandomNodes, kept: ClaimVerdicts, search: DeviceSearch) -> None:
    """The devices of an equal node, by position, are those of a search."""
    for node in cluster.table.nodes:
        allocator = cluster.allocator(node)
        try:
            expected = allocator.allocate(cluster.plans())
        except (NodeError, AllocationError):
            continue
        solutions, state = kept.solutions(search, cluster.table, node.row)
        if state in solutions:
            assert cluster.allocator(node).repeat(cluster.plans(), solutions[state]) == expected
        elif state >= 0 and (found := allocator.solution()) is not None:
            solutions[state] = found


def _check_further_pods(cluster: RandomNodes, kept: ClaimVerdicts, search: DeviceSearch) -> None:
    """As many pods as stated get devices one after the other, and no further one where that is stated."""
    ledger, uids = cluster.pools.ledger, [f"p{number}" for number in range(12)]
    if any(claim.allocation is not None for claim in cluster.claims):
        return
    rows = [node.row for node in cluster.table.nodes if isinstance(cluster.search(node), int)]
    fitting, ends = kept.further_pods(search, NodeView(cluster.table, np.array(rows, dtype=np.intp)))
    for row, pods, is_end in zip(rows, fitting.tolist(), ends.tolist(), strict=True):
        node, placed = cluster.table.nodes[row], []
        for uid in uids:
            _, state = kept.solutions(search, cluster.table, row)
            try:
                found = cluster.allocator(node).allocate(cluster.plans())
            except (NodeError, AllocationError):
                break
            for number, allocation in enumerate(found):
                placed.append((f"{uid}/{number}", uid))
                ledger.assume(f"{uid}/{number}", allocation, uid)
            kept.note_following(search, row, state)
        count = len(placed) // max(1, len(cluster.claims))
        assert pods <= max(1, count) or count == len(uids)
        assert not is_end or pods == count
        for key, uid in reversed(placed):
            ledger.forget(key, uid)


def test_pods_of_a_gang_with_generated_claims_are_placed_together() -> None:
    core, placed = claims_core("D3", 60), []
    allocate = Statement.allocate

    def noted(statement: Statement, job: Job, tasks: list[Task], nodes: list[Node]) -> None:
        placed.append(len(tasks))
        allocate(statement, job, tasks, nodes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Statement, "allocate", noted)
        result = core.step([*arriving("D3", 2 * CLAIMED["D3"])], START + 200)
    assert len([each for each in result.intents if isinstance(each, Bind)]) == sum(placed) == 2 * CLAIMED["D3"]
    assert len(placed) < 20


@pytest.mark.parametrize(
    "expression, searches",
    [
        ('device.attributes["d"].numa == 1', 1),
        ('device.attributes["d"].uuid != "x"', 3),
        ('device.attributes["d"].exists(name, name == "numa")', 3),
    ],
    ids=["an equal attribute", "an attribute of its own", "all attributes"],
)
def test_nodes_share_a_search_unless_claims_read_where_they_differ(expression: str, searches: int) -> None:
    h = _three_nodes(expression)
    h.pod("p", group="g", resourceClaims=[{"name": "r", "resourceClaimName": "c0"}])
    h.step()
    assert "p" in h.binds
    placement = 1  # the places of the devices are searched once more
    assert h.core.snapshot().state.claims.searches.results["allocated"] == searches + placement


def test_the_reasons_of_a_pod_need_no_search_on_nodes_that_its_selector_excludes() -> None:
    h = _three_nodes('device.attributes["d"].uuid == "x"')
    claims = [{"name": "r", "resourceClaimName": "c0"}]
    h.pod("p", group="g", nodeSelector={"kubernetes.io/hostname": "n1"}, resourceClaims=claims)
    h.step()
    assert "cannot allocate all claims" in h.pod_message("p")
    assert h.core.snapshot().state.claims.searches.failed() == 1


def _three_nodes(expression: str) -> Harness:
    """With a device each that has an attribute of its own, and a claim whose selector is this one."""
    h = Harness("actions: 'allocate'\ntiers:\n- plugins: [{name: gang}, {name: predicates}]\n")
    h.queue("q")
    h.group("g", queue="q")
    for name in ("n1", "n2", "n3"):
        h.node(name, cpu="8", labels={"kubernetes.io/hostname": name})
        device = {"name": "g0", "attributes": {"uuid": {"string": f"GPU-{name}"}, "numa": {"int": 1}}}
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "d", "nodeName": name, "pool": pool, "devices": [device]}
        h.apply(ObjectChanged(decode({"metadata": {"name": name}, "spec": spec}, ResourceSliceObject)))
    h.apply(ObjectChanged(decode({"metadata": {"name": "c"}, "spec": {}}, DeviceClassObject)))
    wanted = claim(0, {"r": {"class": "c", "cel": expression}})
    wanted["metadata"]["namespace"] = "default"
    h.apply(ObjectChanged(decode(wanted, ResourceClaimObject)))
    return h


def _lines_of_claims(nodes: int, claims: int) -> int:
    """Executed lines of the session that finds no devices for claims, each of which has a selector of its own."""
    h = Harness("actions: 'allocate'\ntiers:\n- plugins: [{name: gang}, {name: predicates}, {name: capacity-card}]\n")
    h.apply(*present("D1", nodes))
    h.step()
    for number in range(claims):
        expression = f'device.attributes["gpu.nvidia.com"].productName == "card-{nodes}-{claims}-{number}"'
        wanted = claim(number, {"r": {"class": "gpu", "cel": expression}})
        wanted["metadata"]["namespace"] = "default"
        h.apply(ObjectChanged(decode(wanted, ResourceClaimObject)))
        h.group(f"g{number}", queue="q")
        h.pod(f"p{number}", group=f"g{number}", resourceClaims=[{"name": "r", "resourceClaimName": f"c{number}"}])
    lines = executed_lines(h.step)
    assert not h.binds
    return lines


def test_a_claim_that_no_node_satisfies_costs_the_same_for_any_number_of_equal_nodes() -> None:
    few, many = (_lines_of_claims(nodes, 20) - _lines_of_claims(nodes, 10) for nodes in (12, 96))
    assert many <= 1.15 * few, (few, many)
