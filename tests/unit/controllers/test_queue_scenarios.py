"""The worked scenarios of queues: closing, opening, and the children that follow their parent."""

from __future__ import annotations

from tests.unit.controllers.bench import ClusterBench, task

MARK = "volcano.sh/closed-by-parent"


def _queue(bench: ClusterBench, name: str, parent: str = "root", state: str = "Open") -> None:
    bench.create("Queue", name, spec={"parent": parent}, status={"state": state})


def _state(bench: ClusterBench, name: str) -> str:
    return str(bench.get("Queue", name)["status"]["state"])


def _mark(bench: ClusterBench, name: str) -> str | None:
    return (bench.get("Queue", name)["metadata"].get("annotations") or {}).get(MARK)


def _act(bench: ClusterBench, action: str, queue: str) -> None:
    bench.command(action, queue, kind="Queue", name=f"{action.lower()}-{queue}")


def test_an_empty_queue_closes_at_once() -> None:
    bench = ClusterBench()
    _queue(bench, "q")
    _act(bench, "CloseQueue", "q")
    assert (_state(bench, "q"), bench.names("Command")) == ("Closed", [])
    assert bench.messages("Queue", "CloseQueue") == ["Close queue succeed"]


def test_a_queue_closes_when_its_last_podgroup_is_gone_whatever_its_phase() -> None:
    bench = ClusterBench()
    _queue(bench, "q")
    bench.running_job("j", task("w", 2), queue="q")
    _act(bench, "CloseQueue", "q")
    assert (_state(bench, "q"), bench.live()) == ("Closing", ["j-w-0", "j-w-1"])
    bench.patch("PodGroup", bench.names("PodGroup")[0], {"status": {"phase": "Completed"}})
    assert _state(bench, "q") == "Closing"
    bench.delete("Job", "j")
    assert _state(bench, "q") == "Closed"


def test_children_follow_their_parent_unless_they_were_closed_by_hand() -> None:
    bench = ClusterBench()
    _queue(bench, "p")
    _queue(bench, "a", "p")
    _queue(bench, "b", "p")
    _act(bench, "CloseQueue", "b")
    _act(bench, "CloseQueue", "p")
    assert [_state(bench, name) for name in "pab"] == ["Closed"] * 3
    assert (_mark(bench, "a"), _mark(bench, "b")) == ("true", None)
    _act(bench, "OpenQueue", "p")
    assert [_state(bench, name) for name in "pab"] == ["Open", "Open", "Closed"]
    assert _mark(bench, "a") == "false"


def test_a_whole_subtree_follows() -> None:
    bench = ClusterBench()
    for name, parent in (("p", "root"), ("a", "p"), ("x", "a"), ("y", "x")):
        _queue(bench, name, parent)
    _act(bench, "CloseQueue", "p")
    assert [_state(bench, name) for name in "paxy"] == ["Closed"] * 4
    _act(bench, "OpenQueue", "p")
    assert [_state(bench, name) for name in "paxy"] == ["Open"] * 4


def test_a_child_opens_after_its_parent_if_it_was_asked_to_before() -> None:
    bench = ClusterBench()
    _queue(bench, "p", state="Closed")
    _queue(bench, "a", "p", state="Closed")
    _act(bench, "OpenQueue", "a")
    assert _state(bench, "a") == "Closed"
    (message,) = bench.messages("Queue", "OpenQueue")
    assert "queue p is not open: Open the parent queue first" in message
    bench.wait(60)
    _act(bench, "OpenQueue", "p")
    assert (_state(bench, "a"), bench.names("Command")) == ("Open", [])


def test_a_child_stays_closed_when_its_parent_opens_too_late() -> None:
    bench = ClusterBench()
    _queue(bench, "p", state="Closed")
    _queue(bench, "a", "p", state="Closed")
    _act(bench, "OpenQueue", "a")
    bench.wait(180)
    assert bench.names("Command") == []
    assert bench.messages("Queue", "OpenQueue")[-1].startswith("OpenQueue queue failed for")
    _act(bench, "OpenQueue", "p")
    assert _state(bench, "a") == "Closed"


def test_the_root_cannot_be_closed() -> None:
    bench = ClusterBench()
    _queue(bench, "q")
    _act(bench, "CloseQueue", "root")
    assert (_state(bench, "root"), _state(bench, "q"), bench.names("Command")) == ("Open", "Open", [])


def test_a_queue_without_a_state_is_opened() -> None:
    bench = ClusterBench()
    bench.create("Queue", "q", spec={})
    bench.patch("Queue", "q", {"status": {"state": None}, "spec": {"parent": None}})
    assert (_state(bench, "q"), bench.get("Queue", "q")["spec"]["parent"]) == ("Open", "root")


def test_only_a_command_leaves_the_state_unknown() -> None:
    bench = ClusterBench()
    _queue(bench, "q", state="Unknown")
    bench.running_job("j", task("w", 1), queue="q")
    assert _state(bench, "q") == "Unknown"
    _act(bench, "OpenQueue", "q")
    assert _state(bench, "q") == "Open"


def test_a_queue_that_is_created_again_counts_its_podgroups() -> None:
    bench = ClusterBench()
    _queue(bench, "q")
    bench.running_job("j", task("w", 1), queue="q")
    bench.delete("Queue", "q")
    _queue(bench, "q")
    assert bench.get("Queue", "q")["status"]["inqueue"] == 1
    _act(bench, "CloseQueue", "q")
    assert _state(bench, "q") == "Closing"
