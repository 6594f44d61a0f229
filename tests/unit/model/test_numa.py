"""Numatopology objects: facts and problems."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.model.numa import (
    CpuListError,
    NumaFacts,
    NumatopologyObject,
    format_cpus,
    members,
    numa_facts,
    parse_cpus,
)

PLACES = {"0": {}, "1": {"core": 1}, "2": {"numa": 1, "socket": 1}, "3": {"numa": 1, "socket": 1, "core": 1}}
POLICIES = {"CPUManagerPolicy": "static", "TopologyManagerPolicy": "restricted"}


def facts(**spec: Any) -> tuple[NumaFacts | None, str]:
    body = {"policies": POLICIES, "cpuDetail": PLACES, "numares": {"cpu": {"allocatable": "0-3"}}, **spec}
    return numa_facts(msgspec.convert({"metadata": {"name": "n"}, "spec": body}, NumatopologyObject))


def read(**spec: Any) -> NumaFacts:
    found, problem = facts(**spec)
    assert found is not None, problem
    assert problem == ""
    return found


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", 0), (" ", 0), ("0", 0b1), ("0-3,8", 0b1_0000_1111), ("8,0-3,2-3", 0b1_0000_1111), (" 1 , 3-3 ", 0b1010)],
)
def test_lists_of_cpus(text: str, cpus: int) -> None:
    assert parse_cpus(text) == cpus


@pytest.mark.parametrize(
    "text", ["x", "1-", "-1", "1--2", "3-1", "0,,1", "0;1", "0x1", "8192", "0-8192", "0-99999999999"]
)
def test_an_invalid_cpu_list_is_refused(text: str) -> None:
    with pytest.raises(CpuListError, match="CPU"):
        parse_cpus(text)


@given(st.integers(0, 2**70))
def test_a_list_that_is_written_reads_back(cpus: int) -> None:
    assert parse_cpus(format_cpus(cpus)) == cpus
    assert sum(members(cpus)) == cpus
    assert all(each.bit_count() == 1 for each in members(cpus))


def test_an_object_as_an_exporter_writes_it() -> None:
    found = read(resReserved={"cpu": "1100m", "memory": "1Gi"}, numares={"cpu": {"allocatable": "1-3", "capacity": 4}})
    assert (found.name, found.cpu_policy, found.topology_policy) == ("n", "static", "restricted")
    assert (found.reserved, found.free, found.pods) == (2, 0b1110, frozenset())
    topology = found.topology
    assert (topology.numa_ids, topology.numa_nodes, topology.sockets) == ((0, 1), (0b11, 0b1100), (0b11, 0b1100))
    assert topology.cores == ((0, 0b1), (0, 0b10), (1, 0b100), (1, 0b1000)), "core numbers begin anew on each socket"
    assert topology.cpus == 0b1111


def test_pods_are_named_by_uid_or_by_name() -> None:
    given = {"containerAllocations": [{"name": "main", "allocations": {"cpu": "2"}}]}
    found = read(podAllocations=[{"uid": "u", **given}, {"namespace": "a", "name": "p", **given}])
    assert found.pods == {"u", "a/p"}


@pytest.mark.parametrize(
    ("numares", "free"),
    [({}, None), (None, None), ({"memory": {}}, None), ({"cpu": {}}, 0), ({"cpu": {"allocatable": ""}}, 0)],
)
def test_an_empty_list_is_left_out_by_exporters_and_is_not_silence(numares: Any, free: int | None) -> None:
    assert read(numares=numares).free == free


def test_policies_may_be_left_out() -> None:
    found = read(policies=None)
    assert (found.cpu_policy, found.topology_policy) == ("", "")


def test_more_than_there_is_is_all() -> None:
    assert read(resReserved={"cpu": "99"}).reserved == 4


DETAIL = "a map of CPU number to numa, socket and core"
BAD = [
    ({"cpuDetail": None}, f"spec.cpuDetail: is missing: expected {DETAIL}"),
    ({"cpuDetail": {}}, f"spec.cpuDetail: is missing: expected {DETAIL}"),
    ({"cpuDetail": {"a": {}}}, f"spec.cpuDetail: 'a' is not a CPU below 8192: expected {DETAIL}"),
    ({"cpuDetail": {"8192": {}}}, f"spec.cpuDetail: '8192' is not a CPU below 8192: expected {DETAIL}"),
    ({"cpuDetail": {"0": {"numa": -1}}}, "spec.cpuDetail[0].numa: -1 is below 0: expected 0 or more"),
    (
        {"cpuDetail": {str(cpu): {"numa": cpu} for cpu in range(65)}},
        "spec.cpuDetail: 65 NUMA nodes: expected at most 64",
    ),
    (
        {"numares": {"cpu": {"allocatable": "0-x"}}},
        (
            "spec.numares.cpu.allocatable: '0-x' is neither a CPU nor a range of CPUs: "
            "expected CPU numbers below 8192 and ranges such as 0-3,8"
        ),
    ),
    (
        {"numares": {"cpu": {"allocatable": "0,7-4"}}},
        (
            "spec.numares.cpu.allocatable: '7-4' is not a range of CPUs below 8192: "
            "expected CPU numbers below 8192 and ranges such as 0-3,8"
        ),
    ),
    (
        {"numares": {"cpu": {"allocatable": "2-5"}}},
        "spec.numares.cpu.allocatable: CPUs 4-5 are not in spec.cpuDetail",
    ),
    (
        {"policies": {"CPUManagerPolicy": "dynamic"}},
        "spec.policies.CPUManagerPolicy: expected one of none, static, got 'dynamic'",
    ),
    (
        {"policies": {"TopologyManagerPolicy": "single"}},
        (
            "spec.policies.TopologyManagerPolicy: expected one of none, best-effort, restricted, single-numa-node, "
            "got 'single'"
        ),
    ),
    ({"resReserved": {"cpu": "-1"}}, "spec.resReserved.cpu: expected a quantity that is not negative, got '-1'"),
    (
        {"policies": {"CPUManagerPolicy": "x"}, "resReserved": {"cpu": -2}},
        (
            "spec.policies.CPUManagerPolicy: expected one of none, static, got 'x'; "
            "spec.resReserved.cpu: expected a quantity that is not negative, got '-2'"
        ),
    ),
]


@pytest.mark.parametrize(("spec", "problem"), BAD, ids=[problem[:60] for _, problem in BAD])
def test_a_problem_names_field_value_and_accepted_form(spec: Any, problem: str) -> None:
    assert facts(**spec) == (None, problem)


def test_a_quantity_that_is_none_is_named() -> None:
    found, problem = facts(resReserved={"cpu": "much"})
    assert found is None
    assert problem.startswith("spec.resReserved.cpu: 'much' is not a quantity")


def test_long_texts_are_cut() -> None:
    _, problem = facts(policies={"CPUManagerPolicy": "x" * 10_000})
    assert len(problem) < 200


@given(
    st.dictionaries(st.sampled_from(["CPUManagerPolicy", "TopologyManagerPolicy"]), st.text(max_size=20)),
    st.text(max_size=20),
    st.dictionaries(st.text(max_size=4), st.fixed_dictionaries({"numa": st.integers(-2, 99)}), max_size=4),
    st.text(max_size=8) | st.integers() | st.floats(allow_nan=True),
)
def test_any_content_is_read_or_refused(policies: Any, free: str, places: Any, reserved: Any) -> None:
    found, problem = facts(
        policies=policies, numares={"cpu": {"allocatable": free}}, cpuDetail=places, resReserved={"cpu": reserved}
    )
    assert (found is None) == bool(problem)
