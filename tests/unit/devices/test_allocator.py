"""Allocations of the specification, as data; the numbers are those of its vectors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from capcard_sched.devices.allocator import NodeError
from capcard_sched.model.device_objects import Allocation
from tests.unit.devices.pools import DEFAULT, Pools, claim, slices

CASES: Final = yaml.safe_load((Path(__file__).parent / "allocations.yaml").read_text("utf-8"))
IDS: Final = [f"{case['number']} {case.get('name', '')}".strip() for case in CASES]


def shown(allocation: Allocation) -> str:
    found = []
    for each in allocation.devices.results or ():
        share = f"/{each.consumed_capacity['memory']}" if each.consumed_capacity else ""
        found.append(f"{each.request}={each.device}{share}")
    return " ".join(found)


def nodes_of(allocation: Allocation) -> str:
    selector = allocation.node_selector
    if selector is None:
        return "all"
    (term,) = selector.node_selector_terms
    if term.match_fields:
        ((name,),) = [each.values or () for each in term.match_fields]
        return name
    return " ".join(each.key for each in term.match_expressions or ())


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_claims_get_devices(case: dict[str, Any]) -> None:
    made = slices(case.get("slices", DEFAULT))
    where = {device["name"]: each["spec"]["pool"]["name"] for each in made for device in each["spec"]["devices"]}
    held = [each if isinstance(each, dict) else {"device": each} for each in case.get("held", ())]
    pools = Pools(made, held=[{"driver": "d", "pool": where[each["device"]], **each} for each in held])
    for number, selector in enumerate(case.get("rules", ())):
        pools.taint(number, selector)
    before = pools.ledger.snapshot()
    found = pools.allocate([claim(number, each) for number, each in enumerate(case["claims"])])
    if isinstance(found, list):
        outcome: dict[str, object] = {"gives": [shown(each) for each in found]}
        if "nodes" in case:
            outcome["nodes"] = [nodes_of(each) for each in found]
        if "config" in case:
            outcome["config"] = [list(each.devices.config or ()) for each in found]
        if case.get("admin"):
            outcome["admin"] = all(each.admin_access for one in found for each in one.devices.results or ())
    else:
        outcome = {"unfit" if isinstance(found, NodeError) else "error": str(found)}
    expected = {key: case[key] for key in ("gives", "unfit", "error", "nodes", "config", "admin") if key in case}
    assert outcome == expected
    assert pools.ledger.snapshot() == before


def _share_ids(found: list[Allocation]) -> Iterator[str]:
    for each in found:
        for result in each.devices.results or ():
            assert result.share_id is not None
            yield result.share_id


def test_shares_have_ids_that_follow_from_the_claim() -> None:
    pools = Pools(slices({"s": {"devices": {"a": {"shared": 10, "policy": {"default": "1"}}}}}))
    claims = [claim(number, {"r": "c"}) for number in range(2)]
    first, again = pools.allocate(claims), pools.allocate(claims)
    assert isinstance(first, list)
    assert isinstance(again, list)
    ids = list(_share_ids(first))
    assert len(set(ids)) == 2
    assert ids == list(_share_ids(again))
    assert all(len(each) == 36 and each[14] == "5" for each in ids)


def test_a_claim_with_long_selectors_is_refused_before_they_are_compiled() -> None:
    pools = Pools(slices(DEFAULT))
    large = "true && " * 8_192 + "true"
    found = pools.allocate([claim(0, {"r": {"class": "c", "cel": large}})])
    assert str(found) == "claim ns/c0: its selectors have 65540 characters, at most 65536 are supported"


def test_a_search_ends_after_many_trials() -> None:
    devices = {f"g{number}": {"numa": number} for number in range(24)}
    pools = Pools(slices({"s": {"devices": devices}}))
    claims = [claim(0, {"r": "c*12", "match": "d/type"}), claim(1, {"r": "c*12", "match": "d/numa"})]
    assert str(pools.allocate(claims)) == "gave up after 10000 trials to allocate devices"
