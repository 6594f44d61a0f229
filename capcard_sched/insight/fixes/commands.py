"""Fixes as text that can be typed: edited objects to commands, and commands back to steps.

`render` and `parse` are inverse: a trial executes what it parses from the text that is printed. A change that an update
may not make is a line `PATH: VALUE (delete and create the Job)`.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from capcard_sched.admission.jobs import check_job_update
from capcard_sched.admission.review import ClusterView
from capcard_sched.controllers.objects import JOB, POD, POD_GROUP, QUEUE, Key, merge_diff, spec
from capcard_sched.insight.sources.changes import UnknownObjectError
from capcard_sched.model.annotations import CLOSED_BY_PARENT
from capcard_sched.model.kinds import BATCH_JOB
from capcard_sched.model.objects import Taint
from capcard_sched.model.queue import ancestors
from capcard_sched.model.quoting import command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.sources.object_view import Json

RECREATE: Final = " (delete and create the Job)"
_PLUGIN: Final = re.compile(r"- name: (\S+)  # in the first tier of the scheduler-conf")
_ACTIONS: Final = re.compile(r'actions: "(.*)"')
_STEP: Final = re.compile(r'\["((?:[^"\\]|\\.)*)"\]|\[name=([A-Za-z0-9_-]+)\]|\[(\d+)\]|\.?([A-Za-z0-9_-]+)')
_CHANGE_AT: Final = re.compile(f"((?:{_STEP.pattern})+): ")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+")
_NODE: Final = "Node"
#: Kinds to the words of kubectl.
_WORDS: Final = {JOB: "vcjob", BATCH_JOB: "job"}
_KINDS: Final = {
    "vcjob": JOB,
    "job": BATCH_JOB,
    **{
        kind.lower(): kind
        for kind in (POD, QUEUE, _NODE, "PodGroup", "Deployment", "StatefulSet", "ReplicaSet", "ResourceQuota")
    },
}


class FixStep(NamedTuple):
    """One operation of a command."""

    #: patch, scale, delete, suspend, open, uncordon, untaint, recreate, actions, plugin
    verb: str
    #: The object, of an operation on an object.
    key: Key | None = None
    #: A merge patch, number of replicas, taint, (path, value), actions, or a plugin.
    value: Any = None


def kubectl(namespace: str, *words: str) -> str:
    """A kubectl command. `namespace`: "" for an object without one."""
    return command("kubectl", *(("-n", namespace) if namespace else ()), *words)


# --- rendering ------------------------------------------------------------------------------------------------------


def render(scene: Scene) -> dict[tuple[str, ...], tuple[str, ...]]:
    """The edits of a scene as commands, by object, in an order in which admission accepts them."""
    groups: dict[str, list[Key]] = {}
    for key in sorted(map(Key._make, scene.edits.changed), key=lambda key: _depth(scene, key)):
        patch = merge_diff(scene.edits.original(*key) or {}, scene.edits.changed[key])
        if patch:  # pods that change alike share a command
            alike = (
                f"{key.namespace} {json.dumps(patch)}" if key.kind == POD and set(patch) == {"metadata"} else str(key)
            )
            groups.setdefault(alike, []).append(key)
    found: dict[tuple[str, ...], tuple[str, ...]] = {}
    group = Key(POD_GROUP, scene.job.namespace, scene.job.name)
    for keys in groups.values():
        before, after = scene.edits.original(*keys[0]) or {}, scene.edits.changed[keys[0]]
        lines = tuple(_lines(keys[0], [key.name for key in keys], before, after))
        found.update(dict.fromkeys(keys, lines))
    if scene.workload in found and any(line.endswith(RECREATE) for line in found[scene.workload]):
        found.pop(group, None)  # it is created anew
    return {**found, **{(subject,): lines for subject, lines in scene.lines.items() if lines}}


def _depth(scene: Scene, key: Key) -> int:
    """Parents first: admission compares a queue with its parent. The job comes last: its queue has to accept it."""
    queues = scene.core.snapshot().state.queues
    if key.kind != QUEUE or key.name not in queues:
        return 1 << 16
    return len(ancestors(queues[key.name], queues))


def _lines(key: Key, names: list[str], before: Json, after: Json) -> Iterator[str]:
    if any(name.startswith("-") for name in names):  # kubectl reads options in their place
        return
    patch = merge_diff(before, after)
    if key.kind == _NODE:
        yield from _node_lines(key.name, before, after)
        return
    if (key.kind == BATCH_JOB and "spec" in patch) or (key.kind == JOB and _is_refused(before, after)):
        for path, value in _leaves(before, after, ""):
            yield f"{path}: {_text_of(value)}{RECREATE}"
        return
    target = (_WORDS.get(key.kind, key.kind.lower()), *names)
    rest = dict(patch)
    notes = (rest.get("metadata") or {}).get("annotations")
    if key.kind == QUEUE and "state" in (rest.pop("status", None) or {}):
        yield command("capcard-sched", "queue", "open", key.name)
        notes = notes and {name: value for name, value in notes.items() if name != CLOSED_BY_PARENT}
        rest = rest if notes else {name: value for name, value in rest.items() if name != "metadata"}
    if notes and set(rest["metadata"]) == {"annotations"} and not any("=" in name for name in notes):
        del rest["metadata"]
        words = [f"{name}-" if value is None else f"{name}={value}" for name, value in notes.items()]
        yield kubectl(key.namespace, "annotate", *target, "--overwrite", *words)
    if rest:
        for name in names:
            yield kubectl(key.namespace, "patch", target[0], name, "--type", "merge", "-p", json.dumps(rest))


def _is_refused(before: Json, after: Json) -> bool:
    return bool(check_job_update(after, before, ClusterView()).errors)


def _node_lines(name: str, before: Json, after: Json) -> Iterator[str]:
    if spec(before).get("unschedulable") and not spec(after).get("unschedulable"):
        yield kubectl("", "uncordon", name)
    kept = spec(after).get("taints") or ()
    for taint in spec(before).get("taints") or ():
        if taint not in kept and not taint["key"].startswith("node.kubernetes.io/"):
            text = Taint(taint["key"], taint.get("value") or "", taint["effect"]).text
            yield kubectl("", "taint", "node", name, f"{text}-")


def _leaves(before: Any, after: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Paths of the fields that differ, with their new values; None for a field that is removed."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            step = f"{'.' if path else ''}{name}" if _PLAIN.fullmatch(name) else f"[{json.dumps(name)}]"
            if before.get(name) != after.get(name):
                yield from _leaves(before.get(name), after.get(name), path + step)
    elif (
        isinstance(before, list) and isinstance(after, list) and len(before) == len(after) and _all_maps(before, after)
    ):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            if old != new:
                name = old.get("name")
                is_path = isinstance(name, str) and _PLAIN.fullmatch(name)
                is_first = [item.get("name") for item in before].index(name) == index
                yield from _leaves(old, new, f"{path}[name={name}]" if is_path and is_first else f"{path}[{index}]")
    elif before is None and isinstance(after, dict) and after:
        yield from _leaves({}, after, path)
    else:
        yield path, after


def _all_maps(*lists: list[Any]) -> bool:
    return all(isinstance(item, dict) for items in lists for item in items)


def _text_of(value: Any) -> str:
    """A plain text where it reads back as itself, else JSON."""
    if isinstance(value, str) and value and value == _value_of(value) and value.isprintable():
        return value
    return json.dumps(value)


def _value_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


# --- parsing --------------------------------------------------------------------------------------------------------


def parse(line: str, job: Key | None = None) -> list[FixStep]:
    """The steps of a printed line. `job`: the workload that `the Job` means. Raises UnknownObjectError."""
    edit = _edit_of(line, job)
    if edit is not None:
        return [edit]
    namespace, words = _words(line)
    match words:
        case ["kubectl", "patch", kind, name, "--type", "merge", "-p", patch]:
            return [FixStep("patch", Key(_KINDS[kind], namespace, name), json.loads(patch))]
        case ["kubectl", "annotate", kind, *rest] if "--overwrite" in rest:
            at = rest.index("--overwrite")
            annotated = {"metadata": {"annotations": dict(map(_annotation_of, rest[at + 1 :]))}}
            return [FixStep("patch", Key(_KINDS[kind], namespace, name), annotated) for name in rest[:at]]
        case ["kubectl", "scale", kind, name, count]:
            return [FixStep("scale", Key(_KINDS[kind], namespace, name), int(count.removeprefix("--replicas=")))]
        case ["kubectl", "delete", kind, *names]:
            return [FixStep("delete", Key(_KINDS[kind], namespace, name)) for name in names]
        case ["kubectl", "uncordon", name]:
            return [FixStep("uncordon", Key(_NODE, "", name))]
        case ["kubectl", "taint", "node", name, taint]:
            return [FixStep("untaint", Key(_NODE, "", name), taint.removesuffix("-"))]
        case ["capcard-sched", "queue", "open", name]:
            return [FixStep("open", Key(QUEUE, "", name))]
        case ["capcard-sched", "job", "suspend", name]:
            return [FixStep("suspend", Key(JOB, namespace, name))]
    raise UnknownObjectError(f"not a command of a fix: {line}")


def _edit_of(line: str, job: Key | None) -> FixStep | None:
    """The step of a line that is no command: to create the Job anew, or to edit the scheduler-conf."""
    if line.endswith(RECREATE) and job is not None:
        text = line.removesuffix(RECREATE)
        if (change := _CHANGE_AT.match(text)) is not None:
            return FixStep("recreate", job, (change[1], _value_of(text[change.end() :])))
    if (found := _PLUGIN.fullmatch(line)) is not None:
        return FixStep("plugin", value=found[1])
    if (found := _ACTIONS.fullmatch(line)) is not None:
        return FixStep("actions", value=tuple(filter(None, map(str.strip, found[1].split(",")))))
    return None


def _annotation_of(word: str) -> tuple[str, str | None]:
    """The key and the value of an argument of `kubectl annotate`; None: it is removed."""
    key, equals, value = word.partition("=")
    return (key, value) if equals else (key.removesuffix("-"), None)


def _words(line: str) -> tuple[str, list[str]]:
    """The namespace of a command, and its other words; none of a line with an open quote."""
    try:
        words = shlex.split(line)
    except ValueError:
        return "", []
    match words:
        case ["kubectl", "-n", namespace, *others]:
            return namespace, ["kubectl", *others]
        case [*others, "-n", namespace]:
            return namespace, others
    return "", words


def set_at(obj: Json, path: str, value: Any) -> None:
    """Set the field at a printed path, or remove it where the value is None. Missing maps are created."""
    at: Any = obj
    *above, last = _STEP.findall(path)
    for quoted, by_name, index, plain in above:
        if by_name or index:
            at = at[int(index)] if index else next(item for item in at if item.get("name") == by_name)
            continue
        name = json.loads(f'"{quoted}"') if quoted else plain
        if at.get(name) is None:
            at[name] = {}
        at = at[name]
    name = json.loads(f'"{last[0]}"') if last[0] else last[3]
    if value is None:
        at.pop(name, None)
    else:
        at[name] = value
