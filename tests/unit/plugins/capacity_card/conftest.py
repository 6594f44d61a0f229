"""A cluster with the capacity-card plugin and few others, for all tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from capcard_sched.testing import Harness

CONF = """
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
  - name: capacity-card
    arguments: {arguments}
"""


def make_harness(arguments: dict[str, Any] | None = None, *, run: bool = False) -> Harness:
    # JSON is YAML: arguments are written as the user would write them in flow style.
    return Harness(CONF.replace("{arguments}", json.dumps(arguments or {})), run=run)


@pytest.fixture
def harness() -> Callable[..., Harness]:
    return make_harness
