"""Objects of dynamic resource allocation that an API server rejects, or that never work: `device_objects.yaml`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from capcard_sched.simulation.manifests import ManifestDocument
from capcard_sched.simulation.scenario_reader import read_scenario
from capcard_sched.validation.structure import check_object
from tests.unit.validation.device_objects import BAD, GOOD

if TYPE_CHECKING:
    from tests.unit.validation.device_objects import Row


@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in BAD])
def test_an_error_names_the_field_and_the_accepted_form(row: Row) -> None:
    found = list(check_object(row.object["kind"], row.object))
    assert [(each.severity, each.field) for each in found] == [("error", row.field)]
    assert row.text in found[0].message


@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in GOOD])
def test_a_good_object_has_no_finding(row: Row) -> None:
    assert list(check_object(row.object["kind"], row.object)) == []


def test_the_simulator_refuses_them_and_reads_the_rest() -> None:
    bad = [row for row in BAD if row.object["kind"] != "Pod"]
    documents = [
        ManifestDocument(
            "bad.yaml", number, {**row.object, "metadata": {**row.object["metadata"], "name": f"b{number}"}}
        )
        for number, row in enumerate(bad)
    ] + [
        ManifestDocument(
            "good.yaml", number, {**row.object, "metadata": {**row.object["metadata"], "name": f"g{number}"}}
        )
        for number, row in enumerate(GOOD)
    ]
    scenario, problems = read_scenario((), documents=documents)
    assert [each.origin.number for each in problems] == list(range(len(bad)))
    assert {each.origin.source for each in scenario.entries} == {"good.yaml"}
    assert len(scenario.entries) == len(GOOD)


def test_objects_of_a_cluster_are_read_as_they_are() -> None:
    served = [row for row in BAD if row.served]
    assert served
    documents = [
        ManifestDocument(
            "state.json", number, {**row.object, "metadata": {**row.object["metadata"], "name": f"s{number}"}}
        )
        for number, row in enumerate(served)
    ]
    scenario, problems = read_scenario((), documents=documents, served=True)
    assert (len(scenario.entries), problems) == (len(served), [])
    assert len(read_scenario((), documents=documents)[1]) == len(served)
