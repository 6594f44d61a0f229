"""Scenarios of the controllers as data: `*.yaml` beside this file, played in the simulator and on an API server.

A file maps the name of a scenario to its steps. `$NS` is the namespace of the scenario; names of queues and nodes
begin with it. One step is one of

    create: <manifest>            # with `rejected: text*`, admission rejects it with this message
    job: {name, tasks: [{name, replicas, node, ...}], policies: {Event: Action}, ...}
    pod: {name, annotations, labels, node, spec}               # `spec`: further fields
    pods: {names: [...], annotations, labels, node, spec}
    deployment: {name, replicas, annotations, template}       # `template`: annotations of the pods
    queue: {name, ...}
    node: name                    # a node that only pods of tasks with `node: name` get; or
    node: {name, cpu, of}         # one of several that pods with `node: of` get
    patch: {kind, name, <body>}
    delete: {kind, name}
    evict: pod                    # a deletion with the grace period of the pod
    finish: {pod, code}           # `pod`: a pattern
    command: {action, job | queue}
    restart: controllers
    remember: label               # the pods, PodGroups and ReplicaSets that exist
    expect: [...]                 # comes true
    keeps: [...]                  # is true for some time

An expectation has `kind`, `name` (a pattern), `match` (fields; null: absent), `count` (exact; absent: at least one),
`live: true` (not terminating), and, compared with a label, `same` (uid), `fresh` (other uid) or `named` (name).
`$UID(Kind)` is the uid of the only object of a kind in the namespace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Protocol

import yaml

from tests.scenarios.test_scenarios import fits

Manifest = dict[str, Any]
Step = dict[str, Any]

SCHEDULER: Final = "capcard-sched"
#: Scheduling by the quota of queues: a queue without capability for a Job holds it back.
CONF: Final = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: capacity}, {name: nodeorder}]
"""
#: Seconds for which the pods of a scenario terminate.
GRACE: Final = 1
#: Label of a node that only some pods get.
_NODE_LABEL: Final = "scenario"
_UID: Final = re.compile(r"\$UID\((\w+)\)")
_REMEMBERED: Final = ("Pod", "PodGroup", "ReplicaSet")
_API: Final = {
    "Job": "batch.volcano.sh/v1alpha1",
    "Queue": "scheduling.volcano.sh/v1beta1",
    "PodGroup": "scheduling.volcano.sh/v1beta1",
    "Command": "bus.volcano.sh/v1alpha1",
}


class World(Protocol):
    """A cluster with our scheduler, controllers and admission, and a namespace for one scenario."""

    namespace: str

    async def create(self, manifest: Manifest) -> None:
        """Create an object that admission accepts, when the objects it names are known."""

    async def rejection(self, manifest: Manifest) -> str:
        """The message with which admission rejects an object, "" when it accepts it. Stores nothing."""

    async def patch(self, kind: str, name: str, body: Manifest) -> None:
        """Merge-patch an object, or its status."""

    async def delete(self, kind: str, name: str) -> None:
        """Delete an object; a pod with its grace period."""

    async def finish(self, pod: str, code: int) -> None:
        """End the program of a pod."""

    async def list(self, kind: str) -> list[Manifest]:
        """The objects of a kind in the namespace; those of all namespaces for events and cluster-scoped kinds."""

    async def restart_controllers(self) -> None:
        """End the controllers without notice and start them again."""

    async def until(self, check: Callable[[], Awaitable[str]]) -> None:
        """Return when `check` returns ""; fail with its text when it does not."""

    async def hold(self, check: Callable[[], Awaitable[str]]) -> None:
        """Fail when `check` returns a text within some time."""


def load_scenarios(folder: Path = Path(__file__).parent) -> dict[str, list[Step]]:
    """Name to steps, of the files of a folder."""
    found: dict[str, list[Step]] = {}
    for path in sorted(folder.glob("*.yaml")):
        for name, steps in yaml.safe_load(path.read_text("utf-8")).items():
            assert name not in found, f"two scenarios have the name {name!r}"
            found[name] = steps
    return found


class Player:
    """Plays one scenario. `run` once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._labels: dict[str, dict[str, set[str]]] = {}

    async def run(self, steps: list[Step]) -> None:
        """Every step in turn."""
        for number, raw in enumerate(steps, 1):
            step = json.loads(json.dumps(raw).replace("$NS", self._world.namespace))
            rejected = step.pop("rejected", None)
            ((verb, argument),) = step.items()
            try:
                await self._step(verb, argument, rejected)
            except Exception as error:
                error.add_note(f"step {number}: {json.dumps(raw)}")
                raise

    async def _step(self, verb: str, argument: Any, rejected: str | None) -> None:
        world = self._world
        manifest = _MANIFESTS[verb](argument) if verb in _MANIFESTS else None
        if manifest is not None and rejected is not None:
            await self._rejected(manifest, rejected)
        elif manifest is not None:
            if verb == "command":
                await self._set_uid(manifest["target"])
            await world.create(manifest)
        elif verb == "pods":
            for name in argument.pop("names"):
                await world.create(_pod({**argument, "name": name}))
        elif verb == "patch":
            await world.patch(argument.pop("kind"), argument.pop("name"), argument)
        elif verb == "delete":
            await world.delete(argument["kind"], argument["name"])
        elif verb == "evict":
            await world.delete("Pod", argument)
        elif verb == "finish":
            for pod in await world.list("Pod"):
                if fnmatchcase(pod["metadata"]["name"], argument["pod"]):
                    await world.finish(pod["metadata"]["name"], argument.get("code", 0))
        elif verb == "restart":
            await world.restart_controllers()
        elif verb == "remember":
            found = {kind: await world.list(kind) for kind in _REMEMBERED}
            uids = {each["metadata"]["uid"] for objects in found.values() for each in objects}
            names = {each["metadata"]["name"] for objects in found.values() for each in objects}
            self._labels[argument] = {"uids": uids, "names": names}
        elif verb == "expect":
            await world.until(lambda: self._problem(argument))
        elif verb == "keeps":
            await world.hold(lambda: self._problem(argument))
        else:
            raise AssertionError(f"unknown step {verb!r}")

    async def _set_uid(self, target: Manifest) -> None:
        objects = await self._world.list(target["kind"])
        (target["uid"],) = [each["metadata"]["uid"] for each in objects if each["metadata"]["name"] == target["name"]]

    async def _rejected(self, manifest: Manifest, text: str) -> None:
        async def problem() -> str:
            found = await self._world.rejection(manifest)
            return "" if fits(f"*{text}*", found) else f"wanted a rejection with {text!r}, found {found!r}"

        await self._world.until(problem)

    async def _problem(self, wanted: list[Manifest]) -> str:
        """The first expectation that is not true; "" when all are."""
        for each in wanted:
            assert set(each) <= {"kind", "name", "match", "count", "live", "same", "fresh", "named"}, each
            objects = await self._world.list(each["kind"])
            resolved = await self._resolve({"name": each.get("name", "*"), "match": each.get("match", {})})
            found = [one for one in objects if self._fits(each, resolved, one)]
            if len(found) != each["count"] if "count" in each else not found:
                shown = [_shown(one) for one in objects if fnmatchcase(one["metadata"]["name"], resolved["name"])]
                return f"wanted {json.dumps(each)}, found {len(found)} among {json.dumps(shown)[:3000]}"
        return ""

    async def _resolve(self, wanted: Manifest) -> Manifest:
        text = json.dumps(wanted)
        for kind in set(_UID.findall(text)):
            objects = await self._world.list(kind)
            text = text.replace(f"$UID({kind})", objects[0]["metadata"]["uid"] if len(objects) == 1 else "?")
        resolved: Manifest = json.loads(text)
        return resolved

    def _fits(self, wanted: Manifest, resolved: Manifest, found: Manifest) -> bool:
        metadata = found["metadata"]
        label = self._labels.get(wanted.get("same") or wanted.get("fresh") or wanted.get("named") or "", {})
        return (
            fnmatchcase(metadata["name"], resolved["name"])
            and fits(resolved["match"], found)
            and not (wanted.get("live") and metadata.get("deletionTimestamp"))
            and ("same" not in wanted or metadata["uid"] in label["uids"])
            and ("fresh" not in wanted or metadata["uid"] not in label["uids"])
            and ("named" not in wanted or metadata["name"] in label["names"])
        )


def _shown(found: Manifest) -> Manifest:
    """The part of an object that shows why it does not fit."""
    metadata = {key: value for key, value in found["metadata"].items() if key != "managedFields"}
    rest = {
        key: value for key, value in found.items() if key in ("spec", "status", "message", "reason", "involvedObject")
    }
    return {"metadata": metadata, **rest}


# --- manifests --------------------------------------------------------------------------------------------------------


def _template(annotations: Manifest | None = None, node: str = "") -> Manifest:
    container = {"name": "main", "image": "main:1", "resources": {"requests": {"cpu": "1"}}}
    spec: Manifest = {"terminationGracePeriodSeconds": GRACE, "containers": [container]}
    if node:
        spec["nodeSelector"] = {_NODE_LABEL: node}
        spec["tolerations"] = [{"key": _NODE_LABEL, "operator": "Exists"}]
    return {"metadata": {"annotations": annotations or {}}, "spec": spec}


def _task(task: Manifest) -> Manifest:
    policies = {"policies": policy_list(task.pop("policies"))} if "policies" in task else {}
    return {"template": _template(node=task.pop("node", "")), **task, **policies}


def policy_list(policies: Any) -> list[Manifest]:
    """Policies as a Job has them; of a mapping of events to actions, too."""
    if isinstance(policies, list):
        return policies
    return [{"event": event, "action": action} for event, action in policies.items()]


def _job(given: Manifest) -> Manifest:
    metadata = {"name": given.pop("name"), "annotations": given.pop("annotations", {})}
    tasks = [_task(task) for task in given.pop("tasks")]
    policies = {"policies": policy_list(given.pop("policies"))} if "policies" in given else {}
    spec = {"schedulerName": SCHEDULER, "tasks": tasks, **given, **policies}
    return {"apiVersion": _API["Job"], "kind": "Job", "metadata": metadata, "spec": spec}


def _pod(given: Manifest) -> Manifest:
    template = _template(given.get("annotations"), given.get("node", ""))
    template["spec"] |= {"schedulerName": SCHEDULER, **given.get("spec", {})}
    metadata = {**template["metadata"], "name": given["name"], "labels": given.get("labels", {})}
    return {"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata}


def _deployment(given: Manifest) -> Manifest:
    template = _template(given.get("template"))
    template["metadata"]["labels"] = {"app": given["name"]}
    template["spec"]["schedulerName"] = SCHEDULER
    selector = {"matchLabels": {"app": given["name"]}}
    spec = {"replicas": given["replicas"], "selector": selector, "template": template}
    metadata = {"name": given["name"], "annotations": given.get("annotations", {})}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def _queue(given: Manifest) -> Manifest:
    metadata = {"name": given.pop("name"), "annotations": given.pop("annotations", {})}
    return {"apiVersion": _API["Queue"], "kind": "Queue", "metadata": metadata, "spec": given}


def _node(given: str | Manifest) -> Manifest:
    row = {"name": given} if isinstance(given, str) else given
    name, pool = row["name"], row.get("of", row["name"])
    amounts = {"cpu": str(row.get("cpu", 16)), "memory": "64Gi", "pods": "110"}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, _NODE_LABEL: pool}}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    spec = {"taints": [{"key": _NODE_LABEL, "effect": "NoSchedule"}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}


def _command(given: Manifest) -> Manifest:
    kind = "Queue" if "queue" in given else "Job"
    name = given.get("queue") or given["job"]
    target = {"apiVersion": _API[kind], "kind": kind, "name": name}
    head = {"apiVersion": _API["Command"], "kind": "Command", "metadata": {"name": f"{given['action'].lower()}-{name}"}}
    return {**head, "action": given["action"], "target": target}


_MANIFESTS: Final[dict[str, Callable[[Any], Manifest]]] = {
    "create": lambda manifest: manifest,
    "job": _job,
    "pod": _pod,
    "deployment": _deployment,
    "queue": _queue,
    "node": _node,
    "command": _command,
}
