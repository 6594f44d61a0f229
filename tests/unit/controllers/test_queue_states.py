"""Every cell of the queue controller's table of states and actions."""

from __future__ import annotations

import pytest

from capcard_sched.controllers.queues import next_state

#: State ("": never synced) to those that follow from OpenQueue, CloseQueue and SyncQueue, each in an empty queue and in
#: one with a PodGroup.
CELLS = {
    "": "Open Open Closed Closing Open Open",
    "Open": "Open Open Closed Closing Open Open",
    "Closing": "Open Open Closed Closing Closed Closing",
    "Closed": "Open Open Closed Closed Closed Closed",
    "Unknown": "Open Open Closed Closing Unknown Unknown",
}


@pytest.mark.parametrize("state", CELLS)
def test_a_state_follows_from_an_action_and_the_podgroups(state: str) -> None:
    actions = ("OpenQueue", "CloseQueue", "SyncQueue")
    assert [next_state(state, action, groups) for action in actions for groups in (0, 1)] == CELLS[state].split()
