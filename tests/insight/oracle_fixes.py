"""Printed fixes, parsed again and applied to objects as `kubectl` would apply them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, Final

import yaml

from capcard_sched.model.diagnosis import JobDiagnosis
from tests.insight.oracle_factors import pod_specs
from tests.insight.oracle_world import GROUP, Json, Waiting, World, ended, notes

_KINDS: Final = {
    "queue": "Queue", "vcjob": "Job", "job": "Job", "jobs.batch.volcano.sh": "Job", "podgroup": "PodGroup",
    "pod": "Pod", "node": "Node", "nodes": "Node", "deployment": "Deployment", "pods": "Pod",
    "resourcequota": "ResourceQuota",
}  # fmt: skip
#: Seconds in which a fix has to work: the grace period of pods, and sessions.
_SECONDS: Final = 45
#: The same where the victims of an eviction terminate at its end: what is ended first has its grace period, too.
_WITH_VICTIMS: Final = 90


class UnknownFixError(ValueError):
    """A printed change that no rule reads."""


def wrong_fixes(world: World, job: Waiting, found: JobDiagnosis) -> Iterator[tuple[str, str, str]]:
    """Kind of error, what is printed, and what is right."""
    if found.fixes is None:
        return
    for fix in found.fixes.fixes:
        printed = " and ".join(change.command or change.yaml or change.text for change in fix.changes)
        for change in fix.changes:
            for kind, right in _unwanted(world, change.command, change.yaml):
                yield kind, change.command or change.yaml or change.text, right
        changes = [(change.command, change.yaml) for change in fix.changes]
        try:
            later = _applied(world, job, changes)
        except UnknownFixError as error:
            yield "not typed", printed, str(error)
            continue
        if not later.running(job) and any(pod["metadata"].get("deletionTimestamp") for pod in later.of("Pod")):
            later = _applied(world, job, changes, _WITH_VICTIMS)
        members = later.pods_of(job)
        group = later.get("PodGroup", job.group)
        if not later.members(job.group) and group is not None and (group.get("status") or {}).get("phase") == "Inqueue":
            continue  # admitted; nothing creates pods of a PodGroup
        running = later.running(job)
        goal = job.minimum
        if job.running >= job.minimum:
            goal = len([pod for pod in members if not (pod["metadata"].get("deletionTimestamp") or ended(pod))])
        if match := re.search(r'"?min(?:Available|Member)"?: (\d+)', printed):
            goal = min(goal, int(match[1]))
        if running < goal:
            kinds = ", ".join(change.kind for change in fix.changes)
            yield f"does not start it ({kinds})", printed, f"{running} of {goal} pods are bound after it"


def _unwanted(world: World, command: str, text: str) -> Iterator[tuple[str, str]]:
    if "node.kubernetes.io/" in command + text:
        yield "condition taint", "a node in this condition has to be repaired"
    if re.search(r"--replicas=-|: -\d", command):
        yield "negative amount", "amounts are not negative"
    words = shlex.split(command)
    if "annotate" in words and "pod" in words and "deletion-cost" not in command:
        at = words.index("pod")
        for name in words[at + 1 :]:
            pod = world.get("Pod", name)
            owners = ((pod or {}).get("metadata") or {}).get("ownerReferences") or ()
            if any(owner["kind"] in {"ReplicaSet", "Job"} for owner in owners):
                yield (
                    "is lost with the pods",
                    "the template keeps its value, and the next rollout or restart returns it",
                )
                return


def _applied(world: World, job: Waiting, changes: list[tuple[str, str]], seconds: int = _SECONDS) -> World:
    conf = world.conf

    def edit(objects: list[Json]) -> None:
        for command, text in changes:
            if command:
                for part in command.split(" && "):
                    _command(objects, shlex.split(part))
            elif not _is_conf(text):
                _yaml(objects, job, text)

    for command, text in changes:
        if not command and _is_conf(text):
            conf = _changed_conf(conf, text)
    return world.after(edit, conf=conf, seconds=seconds)


def _is_conf(text: str) -> bool:
    return text.startswith(("actions:", "- name:"))


def _changed_conf(conf: str, text: str) -> str:
    if not conf:
        from capcard_sched.framework.conf.scheduler_conf import default_text

        conf = default_text()
    document = yaml.safe_load(conf)
    if text.startswith("actions:"):
        document["actions"] = yaml.safe_load(text)["actions"]
    else:
        document["tiers"][0]["plugins"] += yaml.safe_load(text.partition("#")[0])
    return yaml.safe_dump(document)


def _merge(into: Json, patch: Json) -> None:
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _one(objects: list[Json], kind: str, name: str) -> Json:
    word = _KINDS.get(kind)
    found = next((obj for obj in objects if obj["kind"] == word and obj["metadata"]["name"] == name), None)
    if found is None:
        raise UnknownFixError(f"{kind} {name} does not exist")
    return found


def _owned_by(obj: Json, uids: set[str]) -> bool:
    return any(owner["uid"] in uids for owner in obj["metadata"].get("ownerReferences") or ())


def _remove(objects: list[Json], gone: list[Json]) -> None:
    """Objects and their pods."""
    uids = {str(obj["metadata"].get("uid")) for obj in gone}
    groups = {obj["metadata"]["name"] for obj in objects if obj["kind"] == "PodGroup" and _owned_by(obj, uids)}
    objects[:] = [
        obj
        for obj in objects
        if not (
            obj in gone
            or (obj["kind"] in {"Pod", "ReplicaSet"} and _owned_by(obj, uids))
            or (obj["kind"] == "PodGroup" and obj["metadata"]["name"] in groups)
            or (obj["kind"] == "Pod" and notes(obj).get(GROUP) in groups)
        )
    ]


def _command(objects: list[Json], words: list[str]) -> None:
    program, words = words[0], [word for word in words[1:] if word not in {"--overwrite", "--type", "merge"}]
    words = [word for word in words if word != "--type=merge"]
    while "-n" in words:
        at = words.index("-n")
        del words[at : at + 2]
    verb = words[0]
    match program, verb:
        case "kubectl", "annotate":
            names = [word for word in words[2:] if "=" not in word and not (word.endswith("-") and "/" in word)]
            for word in words[2:]:
                key, equals, value = word.partition("=")
                for name in names if word not in names else ():
                    annotations = _one(objects, words[1], name)["metadata"].setdefault("annotations", {})
                    if equals:
                        annotations[key] = value
                    elif word.endswith("-"):
                        annotations.pop(word[:-1], None)
        case "kubectl", "patch":
            obj = _one(objects, words[1], words[2])
            patch = json.loads(words[words.index("-p") + 1])
            _merge(obj, patch)
            if obj["kind"] == "ResourceQuota" and obj.get("status"):  # its controller copies the limits
                obj["status"]["hard"] = obj["spec"]["hard"]
            if obj["kind"] == "Job" and "minAvailable" in patch.get("spec", {}):
                _of_job(objects, obj, "minMember", patch["spec"]["minAvailable"])
            if obj["kind"] == "Deployment" and "template" in patch.get("spec", {}):
                uid = obj["metadata"]["uid"]  # its controller makes the pods anew
                owned = [one for one in objects if one["kind"] == "ReplicaSet" and _owned_by(one, {uid})]
                _remove(objects, owned)
            if obj["kind"] == "Job" and patch.get("spec", {}).get("suspend"):
                _remove(objects, [obj])
        case "kubectl", "taint":
            node = _one(objects, words[1], words[2])
            key, _, effect = words[3].removesuffix("-").rpartition(":")
            taints = node["spec"].get("taints") or []
            node["spec"]["taints"] = [
                one for one in taints if not (key.partition("=")[0] == one["key"] and effect == one["effect"])
            ]
        case "kubectl", "uncordon":
            spec = _one(objects, "node", words[1])["spec"]
            spec.pop("unschedulable", None)
            taints = spec.get("taints") or []
            spec["taints"] = [one for one in taints if one["key"] != "node.kubernetes.io/unschedulable"]
        case "kubectl", "delete":
            gone = [_one(objects, words[1], name) for name in words[2:] if not name.startswith("-")]
            _remove(objects, gone)
        case "kubectl", "scale":
            deployment = _one(objects, words[1], words[2])
            count = int(next(word for word in words if word.startswith("--replicas=")).partition("=")[2])
            deployment["spec"]["replicas"] = count
        case "capcard-sched", "job":
            if words[1] != "suspend":
                raise UnknownFixError(" ".join(words))
            _remove(objects, [_one(objects, "vcjob", words[2])])
        case "capcard-sched", "queue":
            if words[1] != "open":
                raise UnknownFixError(" ".join(words))
            _one(objects, "queue", words[2]).setdefault("status", {})["state"] = "Open"
        case _:
            raise UnknownFixError(" ".join([program, *words]))


def _of_job(objects: list[Json], job: Json, field: str, value: Any) -> None:
    """What the controller writes to the PodGroup of a Job."""
    for obj in objects:
        owners = obj["metadata"].get("ownerReferences") or ()
        if obj["kind"] == "PodGroup" and any(owner["uid"] == job["metadata"]["uid"] for owner in owners):
            obj["spec"][field] = value


def _yaml(objects: list[Json], job: Waiting, text: str) -> None:
    """Lines of a manifest; the owner makes the pods anew."""
    if text.startswith(("spec.", "metadata.")):
        _fields(objects, job, text)
        return
    line, _, where = text.partition("#")
    fields = yaml.safe_load(line)
    if not isinstance(fields, dict):
        raise UnknownFixError(text)
    if "annotation" in where:
        for obj in objects:
            if obj["kind"] == "Pod" and notes(obj).get(GROUP) == job.group:
                obj["metadata"].setdefault("annotations", {}).update(fields)
            elif job.name == f"{obj['kind'].lower()}/{obj['metadata']['name']}" or (
                obj["kind"] == "ReplicaSet"
                and any(job.name == f"deployment/{one['name']}" for one in obj["metadata"]["ownerReferences"])
            ):
                spec = obj["spec"]
                for template in [task["template"] for task in spec.get("tasks", ())] or [spec.get("template", {})]:
                    template.setdefault("metadata", {}).setdefault("annotations", {}).update(fields)
        return
    if "queue" in fields or "spec.queue" in fields:
        queue = fields.get("queue") or fields["spec.queue"]
        for obj in objects:
            if obj["kind"] == "PodGroup" and obj["metadata"]["name"] == job.group:
                obj["spec"]["queue"] = queue
            if job.name == f"{obj['kind'].lower()}/{obj['metadata']['name']}" and obj["kind"] == "Job":
                obj["spec"]["queue"] = queue
        return
    if "spec" in where or "tolerations" in fields or "nodeSelector" in fields:
        for spec in pod_specs(objects, job):
            for key, value in fields.items():
                spec[key] = [*(spec.get(key) or []), *value] if isinstance(value, list) else value
        return
    raise UnknownFixError(text)


_FIELD: Final = re.compile(
    r"^(?P<path>(?:spec|metadata)\S*?): (?P<value>.*?)(?P<again> \(delete and create the (?P<kind>\w+)\))?$"
)
_STEP: Final = re.compile(r'(\w+)|\[name=([^\]]+)\]|\["([^"]+)"\]|\[(\d+)\]')


def _fields(objects: list[Json], job: Waiting, text: str) -> None:
    """`spec.tasks[name=w].replicas: 2 (delete and create the Job)`, one per line."""
    kind, _, name = job.name.partition("/")
    found = next((o for o in objects if o["kind"].lower() == kind and o["metadata"]["name"] == name), None)
    if found is None:
        raise UnknownFixError(f"{job.name} does not exist")
    again = False
    for line in text.splitlines():
        match = _FIELD.match(line)
        if match is None:
            raise UnknownFixError(line)
        again = again or bool(match["again"])
        steps = [next(filter(None, step)) for step in _STEP.findall(match["path"])]
        at: Any = found
        for step in steps[:-1]:
            if isinstance(at, list):
                at = next((one for one in at if one.get("name") == step), None)
            else:
                at = at.setdefault(step, {})
            if at is None:
                raise UnknownFixError(line)
        at[steps[-1]] = yaml.safe_load(match["value"])
    if again:
        _remove(objects, [found])
        if kind == "pod":
            found["spec"].pop("nodeName", None)
        meta = {
            key: found["metadata"][key]
            for key in ("name", "namespace", "annotations", "labels")
            if key in found["metadata"]
        }
        if kind == "pod":
            for key in (GROUP,):
                (meta.get("annotations") or {}).pop(key, None)
        objects.append(
            {"apiVersion": found["apiVersion"], "kind": found["kind"], "metadata": meta, "spec": found["spec"]}
        )
