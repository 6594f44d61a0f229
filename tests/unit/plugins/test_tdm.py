"""The tdm plugin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.api.node_view import Diagnosis
from capcard_sched.framework.session.session import Session
from capcard_sched.model.intents import Evict
from capcard_sched.model.refusal import Code
from capcard_sched.plugins.tdm import Window, most_evictions, parse_window
from capcard_sched.testing import Harness

ZONE = "volcano.sh/revocable-zone"
PREEMPTABLE = "volcano.sh/preemptable"
NO = {PREEMPTABLE: "false"}


def _conf(arguments: str = "tdm.revocable-zone.night: 22:00-06:00", actions: str = "allocate") -> str:
    return f'actions: "{actions}"\ntiers: [{{plugins: [{{name: tdm, arguments: {{{arguments}}}}}]}}]\n'


def at(time: str, day: int = 2) -> float:
    """A time of a day in January 2026, UTC."""
    hour, minute, second = map(int, time.split(":"))
    return datetime(2026, 1, day, hour, minute, second, tzinfo=UTC).timestamp()


def cluster(time: str, conf: str = _conf(), **more: Any) -> Harness:
    """Node `lent` of zone night, node `own` of none."""
    h = Harness(conf, **more)
    h.now = at(time) - 1
    h.queue("q")
    h.node("lent", labels={ZONE: "night"})
    h.node("own")
    return h


# --- hours ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "time", "active"),
    [
        pytest.param("10:00-21:00", "10:00:00", True, id="17.1 its first second"),
        pytest.param("10:00-21:00", "21:00:00", True, id="its last second"),
        pytest.param("10:00-21:00", "21:00:01", False, id="17.1 a second after"),
        pytest.param("10:00-21:00", "09:59:59", False, id="a second before"),
        pytest.param("22:00-06:00", "23:00:00", True, id="before midnight"),
        pytest.param("22:00-06:00", "03:00:00", True, id="17.2 after midnight (Better)"),
        pytest.param("22:00-06:00", "06:00:01", False, id="over midnight, after the end"),
        pytest.param("22:00-06:00", "12:00:00", False, id="over midnight, at noon"),
        pytest.param("08:00-08:00", "07:00:00", True, id="a whole day"),
        pytest.param("9:30 - 10:00", "09:45:00", True, id="written loosely"),
    ],
)
def test_windows(window: str, time: str, active: bool) -> None:
    parsed = parse_window(window)
    assert parsed is not None
    assert parsed.around(at(time), UTC)[0] is active


@pytest.mark.parametrize("text", ["", "10:00", "24:00-06:00", "10:60-11:00", "10-11", "a:b-c:d", "10:00-21:00-22:00"])
def test_an_invalid_window_parses_to_none(text: str) -> None:
    assert parse_window(text) is None


@given(
    start=st.integers(0, 1439),
    end=st.integers(0, 1439),
    second=st.integers(0, 3 * 86400),
    ahead=st.integers(1, 3 * 86400),
)
def test_nothing_changes_before_the_announced_time(start: int, end: int, second: int, ahead: int) -> None:
    window, now = Window(start, end), at("00:00:00") + second
    active, until = window.around(now, UTC)
    assert until > now
    later = now + ahead
    if later < until:
        assert window.around(later, UTC)[0] is active
    # The plain rule: some day's window holds the time.
    moment = datetime.fromtimestamp(now, UTC)
    midnight = moment.replace(hour=0, minute=0, second=0)
    plain = any(
        midnight + timedelta(days=day, minutes=start)
        <= moment
        <= midnight + timedelta(days=day + int(end <= start), minutes=end)
        for day in (-1, 0)
    )
    assert active is plain


def test_the_time_zone_is_an_argument() -> None:
    for zone, lent in (("UTC", False), ("Asia/Shanghai", True)):  # 15:00 UTC is 23:00 in Shanghai
        h = cluster("15:00:00", _conf(f"tdm.revocable-zone.night: 22:00-06:00, tdm.time-zone: {zone}"))
        h.group("g", annotations={ZONE: "*"})
        h.pod("p")
        assert judged(h, "p")["lent"] == ([] if lent else ["current time beyond revocable zone night:22:00-06:00"])


# --- nodes ----------------------------------------------------------------------------------------------------------


def judged(h: Harness, name: str) -> dict[str, list[str]]:
    """Reasons per node; every refusal must be one that eviction cannot help against."""
    session = h.session()
    signature = session.engine.signature(session.queues["q"], h.task(name))
    found = {}
    for row, node in enumerate(session.nodes.nodes):
        diagnosis = Diagnosis(1)
        h.plugin("tdm").filter_by_zone(signature, session.rows(np.array([row])), diagnosis)
        found[node.name] = list(diagnosis.reasons)
        assert diagnosis.codes[0] == (Code.UNRESOLVABLE if diagnosis.reasons else 0)
    return found


def scored(h: Harness, name: str) -> list[float]:
    session = h.session()
    answer = h.plugin("tdm").score_zones(
        session.engine.signature(session.queues["q"], h.task(name)), session.all_rows()
    )
    return [0.0] * len(session.nodes) if answer is None else answer.tolist()


@pytest.mark.parametrize(
    ("pod", "group", "lent"),
    [
        pytest.param({ZONE: "*"}, {}, True, id="the pod's star"),
        pytest.param({}, {ZONE: "*"}, True, id="the group's star"),
        pytest.param({PREEMPTABLE: "true"}, {}, True, id="preemptable implies it"),
        pytest.param({}, {PREEMPTABLE: "true"}, True, id="a preemptable group implies it"),
        pytest.param({ZONE: "night"}, {ZONE: "*"}, False, id="only a star is understood, and the pod decides"),
        pytest.param({ZONE: "", PREEMPTABLE: "true"}, {}, False, id="the zone precedes preemptable"),
        pytest.param({PREEMPTABLE: "false"}, {}, False, id="not preemptable"),
        pytest.param({}, {}, False, id="17.6 no annotation"),
    ],
)
def test_pods_that_may_use_revocable_nodes(pod: dict[str, str], group: dict[str, str], lent: bool) -> None:
    h = cluster("23:00:00")
    h.group("g", annotations=group)
    h.pod("p", annotations=pod)
    assert judged(h, "p") == {"lent": [] if lent else ["not allow to dispatch to revocable node"], "own": []}
    assert scored(h, "p") == ([100.0, 0.0] if lent else [0.0, 0.0])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("tdm.revocable-zone.night: 22:00-06:00", "current time beyond revocable zone night:22:00-06:00"),
        ("tdm.revocable-zone.other: 22:00-06:00", "revocable zone night not support"),
        ("tdm.revocable-zone.night: 22-6", "revocable zone 22-6 format error"),
    ],
)
def test_zones_that_take_no_pods(arguments: str, reason: str) -> None:
    h = cluster("12:00:00", _conf(arguments))
    h.group("g", annotations={ZONE: "*"})
    h.pod("p")
    assert judged(h, "p") == {"lent": [reason], "own": []}
    assert scored(h, "p") == [0.0, 0.0]


def test_without_labelled_nodes_pods_of_one_class_share_a_profile() -> None:
    h = Harness(_conf())
    h.queue("q")
    h.node("own")
    h.group("g")
    h.group("star", annotations={ZONE: "*"})
    h.pod("p")
    h.pod("s", group="star")
    session = h.session()
    profiles = {session.engine.signature(session.queues["q"], h.task(name)) for name in ("p", "s")}
    assert len(profiles) == 1
    h.node("lent", labels={ZONE: "night"})
    session = h.session()
    profiles = {session.engine.signature(session.queues["q"], h.task(name)) for name in ("p", "s")}
    assert len(profiles) == 2


# --- jobs -----------------------------------------------------------------------------------------------------------


def test_jobs_that_are_not_preemptable_go_first() -> None:
    h = cluster("12:00:00")
    h.group("lender", annotations={PREEMPTABLE: "true"})
    h.group("labelled", labels={PREEMPTABLE: "true"})
    h.group("plain")
    h.group("firm", annotations=NO)
    session = h.session()
    assert [job.name for job in sorted(session.jobs.values(), key=session.job_key)] == [
        "plain", "firm", "lender", "labelled",
    ]  # fmt: skip


# --- budgets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "running", "succeeded", "other", "evictions"),
    [
        pytest.param({"jdb-max-unavailable": "4"}, 7, 1, 2, 2, id="17.3"),
        pytest.param({"jdb-min-available": "50%"}, 5, 0, 0, 2, id="17.4 rounded up"),
        pytest.param({"jdb-min-available": "3"}, 2, 0, 3, 1, id="17.5 below its minimum: one"),
        pytest.param({}, 9, 0, 0, 1, id="none: one"),
        pytest.param({"jdb-max-unavailable": "2"}, 3, 0, 2, 0, id="as many are missing already"),
        pytest.param({"jdb-max-unavailable": "25%"}, 5, 0, 0, 2, id="percent rounded up"),
        pytest.param({"jdb-min-available": "5", "jdb-max-unavailable": "5"}, 5, 0, 0, 0, id="the minimum wins"),
        pytest.param({"jdb-min-available": "many"}, 5, 0, 0, 1, id="unreadable: one"),
        pytest.param({"jdb-max-unavailable": "-1"}, 5, 0, 0, 1, id="negative: one"),
    ],
)
def test_most_evictions(budget: dict[str, str], running: int, succeeded: int, other: int, evictions: int) -> None:
    h = cluster("12:00:00")
    h.group("g", annotations={f"volcano.sh/{key}": value for key, value in budget.items()})
    for index in range(running):
        h.pod(f"r{index}", node="own")
    for index in range(succeeded):
        h.pod(f"s{index}", phase="Succeeded")
    for index in range(other):
        h.pod(f"p{index}")
    h.session()
    assert most_evictions(h.job("g")) == evictions


# --- victims --------------------------------------------------------------------------------------------------------


def victims(h: Harness, preemptor: str, *candidates: str) -> list[str]:
    found = h.plugin("tdm").preemptable(h.task(preemptor), [h.task(name) for name in candidates])
    return [task.name for task in found]


@pytest.mark.parametrize(
    "annotations",
    [{}, {PREEMPTABLE: "true"}, {PREEMPTABLE: "false", ZONE: "*"}],
    ids=["no annotation", "preemptable", "revocable"],
)
def test_preemptable_and_revocable_pods_preempt_nothing(annotations: dict[str, str]) -> None:
    h = cluster("23:00:00")
    h.group("g")
    h.group("a")
    h.pod("p", annotations=annotations)
    h.pod("a0", group="a", node="own")
    h.session()
    assert victims(h, "p", "a0") == []


def overdue(h: Harness, session: Session) -> list[str]:
    running = [h.task(name) for name in ("a0", "a1", "a2", "b0", "firm", "own", "strange")]
    return [task.name for task in h.plugin("tdm").victim_tasks(running)]


def evening(period: str = "1m") -> Harness:
    h = cluster("05:00:00", _conf(f"tdm.revocable-zone.night: 22:00-06:00, tdm.evict.period: {period}"))
    h.node("strange", labels={ZONE: "unknown"})
    h.group("a", annotations={"volcano.sh/jdb-min-available": "1"})
    h.group("b")
    for index in range(3):
        h.pod(f"a{index}", group="a", node="lent")
    h.pod("b0", group="b", node="lent")
    h.pod("firm", group="b", node="lent", annotations=NO)
    h.pod("own", group="b", node="own")
    h.pod("strange", group="b", node="strange")
    return h


def test_after_the_hours_preemptable_pods_on_revocable_nodes_are_evicted() -> None:
    h = evening()
    assert overdue(h, h.session()) == []
    h.now = at("06:00:00")
    assert overdue(h, h.session()) == ["a0", "a1", "b0"]


def test_shuffle_empties_lent_nodes_in_the_morning() -> None:
    h = cluster("05:59:00", _conf(actions="allocate, shuffle"))
    h.group("a", min_member=1, annotations={"volcano.sh/jdb-max-unavailable": "100%"})
    for index in range(3):
        h.pod(f"a{index}", group="a", node="lent")
    h.step(at("05:59:00"))
    h.step(at("06:00:00"))
    assert all(h.task(f"a{index}").status.title == "Running" for index in range(3))
    result = h.step(at("06:00:01"))
    evicted = [intent.name for intent in result.intents if isinstance(intent, Evict)]
    assert sorted(evicted) == ["a0", "a1", "a2"]


@pytest.mark.parametrize(
    ("pods", "least", "notes", "gone"),
    [
        pytest.param(3, 3, {}, ["a0", "a1", "a2"], id="a gang that needs all goes whole"),
        pytest.param(3, 2, {}, ["a0"], id="one at a time while it can do without"),
        pytest.param(3, 1, {}, ["a0"], id="one at a time when each runs alone"),
        pytest.param(3, 3, {"volcano.sh/jdb-max-unavailable": "1"}, [], id="its own budget keeps it together"),
    ],
)
def test_shuffle_neither_breaks_a_gang_nor_leaves_it_on_lent_nodes(
    pods: int, least: int, notes: dict[str, str], gone: list[str]
) -> None:
    h = cluster("05:59:00", _conf(actions="allocate, shuffle"))
    h.group("a", min_member=least, annotations=notes)
    for index in range(pods):
        h.pod(f"a{index}", group="a", node="lent")
    h.step(at("05:59:00"))
    result = h.step(at("06:00:01"))
    assert sorted(intent.name for intent in result.intents if isinstance(intent, Evict)) == gone
