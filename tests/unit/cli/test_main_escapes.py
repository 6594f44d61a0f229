"""Terminal escapes, direction marks and line breaks in any text of an object: no verb prints them as they are."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.cli.main import run
from capcard_sched.daemon.diagnosis.recording import Recording
from capcard_sched.model.quoting import escaped, escaped_json
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.scenario import InputError
from tests.insight.scenes import core_of, recorded_run

HOSTILE = "x\x1b[31m\x9b1mred\u202eevil\u2028\r\nerror: forged\x07[/bold][red]"
#: Characters that never reach the output as they are.
RAW = "\x1b\x9b\u202e\u2028\r\x07"
OBJECTS: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"a": "b"}, "annotations": {"c": "d"}},
     "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
     "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}}},
    {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "q", "annotations": {
        "volcano.sh/card.quota": '{"A": 1}'}}, "spec": {"parent": "root", "weight": 1, "capability": {"cpu": "8"}},
     "status": {"state": "Open"}},
    {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": "g",
        "namespace": "default",
        "annotations": {"volcano.sh/card.request": '{"A": 1}', "volcano.sh/service.type": "training"}},
     "spec": {"queue": "q", "minMember": 1, "priorityClassName": "p"}, "status": {"phase": "Pending"}},
    {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default", "labels": {"a": "b"},
        "annotations": {"scheduling.k8s.io/group-name": "g", "volcano.sh/card.name": "A"}},
     "spec": {"schedulerName": "volcano", "nodeSelector": {"a": "b"}, "containers": [
         {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}, "status": {"phase": "Pending"}},
    {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "j", "namespace": "default"},
     "spec": {"queue": "q", "minAvailable": 1, "tasks": [{"name": "w", "replicas": 1, "template": {
         "metadata": {"annotations": {"volcano.sh/card.name": "A"}},
         "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}]}},
]  # fmt: skip
VERBS = [
    ["validate", "-f", "$"],
    ["validate", "-o", "json", "-f", "$"],
    ["simulate", "--until", "1m", "-f", "$"],
    ["simulate", "--until", "1m", "-o", "json", "-f", "$"],
    ["simulate", "--until", "1m", "-o", "yaml", "-f", "$"],
    ["queue", "list", "-f", "$"],
    ["job", "list", "-f", "$"],
    ["job", "list", "-o", "yaml", "-f", "$"],
    ["pod", "list", "-f", "$"],
    ["node", "list", "-f", "$"],
    ["explain", "g", "-f", "$"],
    ["explain", "g", "-o", "json", "-f", "$"],
    ["explain", "p", "--fix", "-f", "$"],
    ["card", "list", "-f", "$"],
    ["card", "list", "-o", "yaml", "-f", "$"],
    ["pod", "list", "-o", "wide", "-f", "$"],
    ["pod", "list", "-o", "json", "-f", "$"],
    ["node", "list", "-o", "wide", "-f", "$"],
    ["queue", "list", "-o", "yaml", "-f", "$"],
    ["what-if", "--drain", "n1", "-f", "$"],
    ["what-if", "--drain", "n1", "-o", "json", "-f", "$"],
]


def variants(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    """The place of every text and key of an object."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from variants(inner, (*path, key))
            if path and path[-1] in {"labels", "annotations", "capability", "requests", "nodeSelector"}:
                yield (*path, key), "key"
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from variants(inner, (*path, index))
    elif isinstance(value, str):
        yield path, "value"


def changed(objects: list[dict[str, Any]], path: tuple[Any, ...], what: str) -> list[dict[str, Any]]:
    found = copy.deepcopy(objects)
    *steps, last = path
    parent: Any = found
    for step in steps:
        parent = parent[step]
    if what == "key":
        parent[f"{last}{HOSTILE}"] = parent.pop(last)
    else:
        parent[last] = f"{parent[last]}{HOSTILE}"
    return found


PLACES = [(path, what) for path, what in variants(OBJECTS) if path[1:] not in {("kind",), ("apiVersion",)}]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb[:-2]))
def test_no_verb_prints_control_characters_of_an_object(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (path, what) in enumerate(PLACES):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": changed(OBJECTS, path, what)}))
        run([str(file) if word == "$" else word for word in verb])
        printed = capsys.readouterr()
        for stream in printed:
            raw = [character for character in RAW if character in stream]
            assert not raw, (path, what, stream)
            assert not [line for line in stream.splitlines() if line.startswith("error: forged")], (path, what, stream)


def _messages(value: Any) -> Iterator[str]:
    """The texts of events and conditions."""
    if isinstance(value, dict):
        if isinstance(value.get("message"), str):
            yield value["message"]
        for inner in value.values():
            yield from _messages(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _messages(inner)


def test_events_and_conditions_have_no_control_characters_of_an_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """kubectl prints them as they are."""
    for number, (path, what) in enumerate(PLACES):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": changed(OBJECTS, path, what)}))
        if run(["simulate", "--until", "1m", "-o", "json", "-f", str(file)]) == 0:
            for message in _messages(json.loads(capsys.readouterr().out)):
                assert not [character for character in RAW if character in message], (path, what, message)


def _record(path: Path, objects: list[dict[str, Any]]) -> bool:
    """Record a simulation of objects; False when the simulator does not accept them."""
    file = path.with_suffix(".json")
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}))
    core = core_of()
    conf = core.snapshot().conf
    recording = Recording(path, conf, scheduler_names=("volcano",), default_queue="default", clock=lambda: EPOCH)
    try:
        recorded_run(str(file), core, recording, until=5 * SECOND)
    except InputError:
        return False
    finally:
        recording.close()
    return True


@pytest.mark.parametrize("verb", [["replay"], ["replay", "-o", "json"], ["job", "list", "--recording"]])
def test_a_recording_is_shown_without_control_characters(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (path, what) in enumerate(PLACES):
        file = tmp_path / f"{number}.rec"
        if not _record(file, changed(OBJECTS, path, what)):
            continue
        run([*verb, str(file)])
        for stream in capsys.readouterr():
            raw = [character for character in RAW if character in stream]
            assert not raw, (path, what, stream)


@pytest.mark.parametrize("text", ["plain ü 漢字 🚀", "", "a b"])
def test_text_that_is_shown_as_it_is_stays(text: str) -> None:
    assert escaped(text) == text
    assert escaped_json(json.dumps(text, ensure_ascii=False)) == json.dumps(text, ensure_ascii=False)


def test_json_keeps_its_values() -> None:
    text = json.dumps({HOSTILE: [HOSTILE, "\U000e0041"]}, ensure_ascii=False)
    assert json.loads(escaped_json(text)) == json.loads(text)
    assert not any(character in escaped_json(text) for character in RAW)


def test_escapes_name_the_character() -> None:
    assert escaped("a\x1b[31m\n\u202e\U000e0041") == r"a\x1b[31m\n\u202e\U000e0041".replace(r"\n", r"\x0a")
    assert escaped("a\nb\tc\x1b", lines=True) == "a\nb\tc\\x1b"
