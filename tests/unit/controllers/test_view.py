"""Commands in the order in which they were created."""

from __future__ import annotations

import random

from capcard_sched.controllers.view import command_age


def test_commands_of_one_second_have_the_order_of_their_resource_version() -> None:
    made = [("2026-01-01T00:00:01Z", "9", "z"), ("2026-01-01T00:00:01Z", "10", "a"), ("2026-01-01T00:00:02Z", "8", "m")]
    commands = [
        {"metadata": {"name": name, "creationTimestamp": time, "resourceVersion": version}}
        for time, version, name in made
    ]
    shuffled = random.Random(1).sample(commands, 3)
    assert sorted(shuffled, key=command_age) == commands
