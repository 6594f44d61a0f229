"""The controllers are killed at every write of the cases of `*.yaml`: the next process reaches the same end.

`tests/e2e/controllers/test_kill.py` does the same with processes on an API server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.controllers.bench import ClusterBench, Manifest
from tests.unit.controllers.killing import Kill, KilledCluster
from tests.unit.controllers.script import Script, cases

#: A case that deletes an object and creates it itself: controllers that start in between create it as well.
_EXCEPT = "podgroups a PodGroup that was created before its owner was known"


def _cases(rows_each: int | None) -> list[Any]:
    return [case for case in cases(Path(__file__).parent, rows_each) if not case.id.startswith(_EXCEPT)]


#: No process of these ends.
_NEVER = Kill(1, taken=False, times=0)
#: The writes of the cases, by controller. One that is missing has lost its case, a new one needs a case.
WRITES = {
    "JobController": {
        *("create ConfigMap", "create NetworkPolicy", "create PersistentVolumeClaim", "create Pod", "create PodGroup"),
        *("create Secret", "create Service", "delete Command", "delete ConfigMap", "delete NetworkPolicy"),
        *("delete Pod", "delete PodGroup", "delete Secret", "delete Service", "patch ConfigMap", "patch Job"),
        *("patch Job/status", "patch Pod", "patch PodGroup", "patch Secret"),
    },
    "TtlController": {"delete Job", "patch Job/status"},
    "CronJobController": {"create Job", "delete Job", "patch CronJob/status"},
    "PodGroupController": {"create PodGroup", "delete PodGroup", "patch Pod", "patch PodGroup"},
    "QueueController": {"delete Command", "patch Queue", "patch Queue/status"},
    "NamespaceQueueController": {"patch NamespaceQueue/status"},
}


class KilledScript(Script):
    """A case. Its expectations hold with every kill, those of events excepted."""

    def __init__(self, kill: Kill) -> None:
        self.cluster = KilledCluster(kill)
        super().__init__(ClusterBench(self.cluster))

    def events(self, kind: str, reason: str, *messages: str) -> None:
        """Events of a process that is killed may be lost, or repeated by the next one."""


def end(text: str, kill: Kill) -> tuple[Manifest, KilledCluster]:
    """The objects at the end of a case, without uids, versions and the times at which they appeared."""
    script = KilledScript(kill)
    try:
        script.play(text)
    except Exception as error:
        error.add_note(str(kill))
        raise
    store = script.bench.store
    objects = [found for kind in store.kinds() if kind not in ("Event", "Node") for found in store.list(kind)]
    names = {found["metadata"]["uid"]: f"{found['kind']}/{found['metadata']['name']}" for found in objects}
    state = {}
    for found in objects:
        key = f"{found['kind']} {_plain(found['metadata']['name'], names)}"
        assert key not in state, f"{key} is double"
        state[key] = _plain(found, names)
    return state, script.cluster


def _plain(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        # The record of the last Command is the uid of an object that is gone.
        absent = ("resourceVersion", "creationTimestamp", "uid", "command")
        return {_plain(key, names): _plain(part, names) for key, part in value.items() if key not in absent}
    if isinstance(value, list):
        return [_plain(part, names) for part in value]
    if isinstance(value, str) and "-4000-8000-" in value:  # a uid, or a name that ends with one
        for uid, name in names.items():
            value = value.replace(uid, name)
    return value


def test_every_write_of_the_controllers_may_be_the_last_one_of_its_process() -> None:
    seen: dict[str, set[str]] = {}
    for case in _cases(rows_each=1):
        (text,) = case.values
        expected, cluster = end(str(text), _NEVER)
        for controller, verb, kind in cluster.writes:
            seen.setdefault(controller, set()).add(f"{verb} {kind}")
        if cluster.writes:
            assert end(str(text), Kill(1, taken=True, times=99))[0] == expected, case.id
    assert seen == WRITES


@pytest.mark.campaign
@pytest.mark.parametrize("text", _cases(rows_each=None))
def test_a_kill_at_any_write_changes_no_end(text: str) -> None:
    for reverse in (False, True):
        expected, cluster = end(text, _NEVER._replace(reverse=reverse))
        for nth in range(1, len(cluster.writes) + 1):
            kill = Kill(nth, taken=not reverse, reverse=reverse)
            assert end(text, kill)[0] == expected, kill
