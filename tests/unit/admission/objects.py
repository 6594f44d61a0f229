"""Objects with one field changed, and the cluster that admission tests look at."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from capcard_sched.admission.review import ClusterView
from capcard_sched.model.objects import QueueObject

Json = dict[str, Any]

_DELETE = "~delete"
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def vectors(name: str) -> Json:
    """The cases of a file in this folder."""
    found: Json = yaml.safe_load(Path(__file__).with_name(name).read_text("utf-8"))
    return found


def changed(base: Json, path: str, value: Any) -> Json:
    """A copy of `base` with the value at `path` set, or removed for `~delete`."""
    obj = copy.deepcopy(base)
    *steps, last = [name or int(index) for name, index in _STEP.findall(path)]
    parent: Any = obj
    for step in steps:
        parent = parent[step] if isinstance(step, int) else parent.setdefault(step, {})
    if value == _DELETE:
        del parent[last]
    else:
        parent[last] = value
    return obj


def queue(name: str, *, parent: str = "", state: str = "Open", quota: str = "", **more: Any) -> QueueObject:
    """A stored queue."""
    annotations = {"volcano.sh/card.quota": quota} if quota else {}
    obj = {
        "metadata": {"name": name, "annotations": {**annotations, **more.get("annotations", {})}},
        "spec": {"parent": parent},
        "status": {"state": state, "allocated": more.get("allocated", {})},
    }
    return msgspec.convert(obj, QueueObject)


def view() -> ClusterView:
    """Queues in every state."""
    found = ClusterView()
    for each in (
        queue("root"),
        queue("default"),
        queue("research", quota='{"NVIDIA-H200": 8}'),
        queue("closed", state="Closed"),
        queue("closing", state="Closing"),
        queue("parent"),
        queue("child", parent="parent"),
        queue("busy", allocated={"pods": "3"}),
        queue("team"),
        queue("below-team", parent="team"),
        queue("org", annotations={"volcano.sh/hierarchy": "root/org/lab"}),
    ):
        found.set_queue(each)
    found.set_namespace("lab", "research")
    found.inventory.priority_classes = {"high"}
    return found
