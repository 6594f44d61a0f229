"""Rules of queues beyond the scenarios of `tests/scenarios/controllers`."""

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


def test_a_whole_subtree_follows() -> None:
    bench = ClusterBench()
    for name, parent in (("p", "root"), ("a", "p"), ("x", "a"), ("y", "x")):
        _queue(bench, name, parent)
    _act(bench, "CloseQueue", "p")
    assert [_state(bench, name) for name in "paxy"] == ["Closed"] * 4
    _act(bench, "OpenQueue", "p")
    assert [_state(bench, name) for name in "paxy"] == ["Open"] * 4


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
