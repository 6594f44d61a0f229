"""The contract of the hook `place_limits`: what a plugin breaks concerns one job, and names the plugin."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final, cast

import numpy as np
import pytest

from capcard_sched.framework.api.place_limits import PlaceLimit
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.model.job import Task
from capcard_sched.testing import Harness

_CONF: Final = 'actions: "enqueue, allocate"\ntiers: [{plugins: [{name: gang}, {name: predicates}, {name: limits}]}]'


def _raised() -> PlaceLimit:
    raise ValueError("no idea")


_BROKEN: Final[dict[str, tuple[Callable[[], PlaceLimit], str]]] = {
    "an exception": (_raised, "no idea"),
    "a mask of other nodes": (lambda: PlaceLimit("", nodes=np.ones(7, dtype=bool)), r"nodes has the shape \(7,\)"),
    "amounts of other nodes": (lambda: PlaceLimit("", most=np.ones((2, 2), dtype=np.int64)), "most has the shape"),
    "domains of other nodes": (lambda: PlaceLimit("", domains=np.zeros(0, dtype=np.intp)), "domains has the shape"),
    "another field in the text": (lambda: PlaceLimit("{limit} of {name}"), "other fields than"),
    "a key that is not hashable": (lambda: PlaceLimit("{limit}", key=cast("Hashable", [])), "unhashable"),
}  # fmt: skip


@pytest.mark.parametrize("case", _BROKEN)
def test_what_breaks_the_contract_concerns_one_job_and_names_the_plugin(case: str) -> None:
    made, text = _BROKEN[case]

    class Limits(Plugin):
        name = "limits"

        def place_limits(self, tasks: Sequence[Task]) -> Iterator[PlaceLimit]:
            job = tasks[0].job
            if job is not None and job.name == "broken":
                yield made()

    h = Harness(_CONF, plugins=[Limits])
    h.queue("q")
    for name in ("n1", "n2"):
        h.node(name, cpu="8")
    for name in ("broken", "other"):
        h.group(name, queue="q")
        h.pod(name, group=name, requests={"cpu": "1"})
    report = h.step().report
    assert sorted(h.binds) == ["broken", "other"], "the jobs are attempted in the same session"
    (error,) = {(error.plugin, error.hook, error.object) for error in report.errors}
    assert error == ("limits", "place_limits", "PodGroup default/broken")
    assert any(re.search(text, one.error) for one in report.errors)


def test_a_plugin_that_does_not_open_stops_the_actions() -> None:
    class Limits(Plugin):
        name = "limits"

        def open(self, session: object) -> None:
            raise ValueError("no protection")

    h = Harness(_CONF, plugins=[Limits])
    h.queue("q")
    h.node("n1", cpu="8")
    h.group("g", queue="q")
    h.pod("p", group="g", requests={"cpu": "1"})
    h.step()
    assert not h.binds
