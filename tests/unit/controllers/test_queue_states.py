"""Every cell of the queue controller's table of states and actions."""

from __future__ import annotations

import pytest

from capcard_sched.controllers.queues import next_state

#: State, action, PodGroups in the queue, state that follows. "" is a queue that was never synced.
CELLS = [
    ("", "OpenQueue", 0, "Open"),
    ("", "OpenQueue", 1, "Open"),
    ("", "CloseQueue", 0, "Closed"),
    ("", "CloseQueue", 1, "Closing"),
    ("", "SyncQueue", 0, "Open"),
    ("", "SyncQueue", 1, "Open"),
    ("Open", "OpenQueue", 0, "Open"),
    ("Open", "OpenQueue", 1, "Open"),
    ("Open", "CloseQueue", 0, "Closed"),
    ("Open", "CloseQueue", 1, "Closing"),
    ("Open", "SyncQueue", 0, "Open"),
    ("Open", "SyncQueue", 1, "Open"),
    ("Closing", "OpenQueue", 0, "Open"),
    ("Closing", "OpenQueue", 1, "Open"),
    ("Closing", "CloseQueue", 0, "Closed"),
    ("Closing", "CloseQueue", 1, "Closing"),
    ("Closing", "SyncQueue", 0, "Closed"),
    ("Closing", "SyncQueue", 1, "Closing"),
    ("Closed", "OpenQueue", 0, "Open"),
    ("Closed", "OpenQueue", 1, "Open"),
    ("Closed", "CloseQueue", 0, "Closed"),
    ("Closed", "CloseQueue", 1, "Closed"),
    ("Closed", "SyncQueue", 0, "Closed"),
    ("Closed", "SyncQueue", 1, "Closed"),
    ("Unknown", "OpenQueue", 0, "Open"),
    ("Unknown", "OpenQueue", 1, "Open"),
    ("Unknown", "CloseQueue", 0, "Closed"),
    ("Unknown", "CloseQueue", 1, "Closing"),
    ("Unknown", "SyncQueue", 0, "Unknown"),
    ("Unknown", "SyncQueue", 1, "Unknown"),
]


@pytest.mark.parametrize("state, action, groups, expected", CELLS)
def test_a_state_follows_from_an_action_and_the_podgroups(state: str, action: str, groups: int, expected: str) -> None:
    assert next_state(state, action, groups) == expected
