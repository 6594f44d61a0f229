"""The objects of a scenario in lines of text: `job a queue=q min=2 + worker*2 cpu=1 gpu=4 card=NVIDIA-H200`.

    node n1..3 8*NVIDIA-H200 cpu=64         allocatable cpu, and 192 cpu, 2Ti of memory, 110 pods where absent
    queue q cards=NVIDIA-H200:8 parent=all  `cap`: capability; other keys: fields of its spec
    priority_class high 80000               other keys: fields
    job a queue=q min=2 + worker*2 cpu=1    `request`: card.request; `+` begins a task; other keys: fields of the spec
    group g queue=q min=2                   a PodGroup; `request` and other keys as of a job
    slice n1 2*NVIDIA-H200                  a ResourceSlice of gpu.nvidia.com: devices g0, g1 of node n1, pool n1;
                                            `+1*NVIDIA-A100`: of several models; `type`, `profile`; other keys: fields
                                            of the devices
    device_class gpu                        of driver gpu.nvidia.com; `cel`: a further selector
    resource_claim c class=gpu count=2      a ResourceClaim of one request r; `cel`, `mode`; `first=2*NVIDIA-H200,...`:
                                            alternatives a0, a1, ... by model; `claim_template` likewise
    deployment d*3 queue=q cpu=1
    pod p queue=q cpu=1

A node may have `labels`, `annotations`, `spec` and resources by name. A pod, or the template of a job or deployment,
has `cpu`, `memory` (requests), `gpu` (a limit), `requests`, `limits`, `port` (a host port), `card` (card.name), `runs`
and `grace` (simulated times), `class` (priorityClassName), `labels`, `annotations`; other keys are fields of its spec.
The scheduler is `volcano` unless `scheduler` names another one, or `none`. `operation` reads what happens later:
`10s pod p cpu=1` creates, `10s delete Pod p` deletes, `10s patch Node n1 {spec: ...}` patches.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from tests.vectors.notation import names, statements, value

Manifest = dict[str, Any]

#: Of expanded files.
_FOLDER: Final = tempfile.TemporaryDirectory(prefix="capcard-")
_MIB: Final = {
    "NVIDIA-H200": 143771,
    "NVIDIA-GeForce-RTX-4090": 24564,
    "NVIDIA-A100-80GB": 81920,
    "NVIDIA-H800": 81559,
}
_VERSIONS: Final = {
    "Node": "v1",
    "Pod": "v1",
    "Namespace": "v1",
    "ConfigMap": "v1",
    "PersistentVolumeClaim": "v1",
    "ResourceSlice": "resource.k8s.io/v1",
    "ResourceClaim": "resource.k8s.io/v1",
    "ResourceClaimTemplate": "resource.k8s.io/v1",
    "DeviceClass": "resource.k8s.io/v1",
    "Queue": "scheduling.volcano.sh/v1beta1",
    "PodGroup": "scheduling.volcano.sh/v1beta1",
    "PriorityClass": "scheduling.k8s.io/v1",
    "Job": "batch.volcano.sh/v1alpha1",
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
}
_NOTES: Final = {
    "card": "volcano.sh/card.name",
    "runs": "simulation.capcard-sched.io/duration",
    "grace": "simulation.capcard-sched.io/grace",
    "queue": "scheduling.volcano.sh/queue-name",
    "group": "scheduling.k8s.io/group-name",
}
_FIELDS: Final = {
    "min": "minAvailable",
    "class": "priorityClassName",
    "scheduler": "schedulerName",
    "cap": "capability",
}
#: Fields of a task; the others are those of its pods.
_OF_TASKS: Final = ("min", "policies", "maxRetry", "dependsOn", "partitionPolicy")


def manifests(text: str) -> list[Manifest]:
    """The objects of some statements."""
    return [
        manifest([kind, name, *rest])
        for kind, subject, *rest in statements(text)
        for name in (names(subject) if kind == "node" else [subject])
    ]


def is_statement(text: str) -> bool:
    """Whether a text begins with a statement, and not with a manifest."""
    return any(text.lstrip().startswith(f"{kind} ") for kind in _MAKERS)


def documents(text: str) -> list[Manifest]:
    """The objects of a file: its manifests, then those of `cluster`, and `operations` as a Scenario."""
    found = [document for document in yaml.safe_load_all(text) if document]
    plain = [document for document in found if "kind" in document]
    return [*plain, *(one for document in found if "kind" not in document for one in objects_of(document))]


def objects_of(plan: Manifest) -> list[Manifest]:
    """The objects of `cluster`, and `operations` as a Scenario."""
    head = {
        "apiVersion": "simulation.capcard-sched.io/v1alpha1",
        "kind": "Scenario",
        "metadata": {"name": "operations"},
    }
    operations = [operation(text) for text in plan.get("operations", ())]
    scenario = [{**head, "spec": {"operations": operations}}] if operations else []
    return [*manifests(plan.get("cluster", "")), *scenario]


@cache
def expanded(path: Path) -> Path:
    """A file of the objects of this one, for the flag `-f` of a command."""
    target = Path(_FOLDER.name) / path.name
    target.write_text("\n---\n".join(json.dumps(document, default=str) for document in documents(path.read_text())))
    return target


def operation(text: str) -> Manifest:
    """One operation of a Scenario."""
    (at, *words), *more = statements(text)
    assert not more, text
    if words[0] not in ("delete", "patch"):
        return {"at": at, "create": manifest(words)}
    verb, kind, name, *rest = words
    namespace, slash, name = name.rpartition("/")
    head: Manifest = {
        "apiVersion": _VERSIONS[kind],
        "kind": kind,
        "metadata": {"name": name, **({"namespace": namespace} if slash else {})},
    }
    return {"at": at, verb: _merged(head, yaml.safe_load(rest[0]) if rest else {})}


def manifest(words: list[str]) -> Manifest:
    """The object of one statement."""
    kind, name, *rest = words
    return _MAKERS[kind](name, rest)


def _merged(under: Manifest, over: Manifest) -> Manifest:
    """Both, with `over` where they differ; mappings are merged."""
    both = {
        key: _merged(under[key], found) if isinstance(under.get(key), dict) else found for key, found in over.items()
    }
    return {**under, **both}


def _object(kind: str, name: str, annotations: Manifest, **parts: Any) -> Manifest:
    metadata: Manifest = {"name": name}
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": _VERSIONS[kind], "kind": kind, "metadata": metadata, **parts}


def _pairs(words: list[str]) -> dict[str, str]:
    """`key=value`, and `+key` and `-key` for true and false."""
    found = {}
    for word in words:
        key, equals, text = word.partition("=")
        assert equals or word[0] in "+-", word
        found[key if equals else word[1:]] = text if equals else str(word[0] == "+").lower()
    return found


def _texts(text: str) -> dict[str, str]:
    found: dict[str, str] = value(text, "Mapping[str, str]")
    return found


def _amounts(text: str) -> str:
    """Amounts by name as JSON; what is no list of them as it is."""
    if text.startswith(("'", '"')):
        return str(yaml.safe_load(text))
    return json.dumps(value(text, "Mapping"))


def _fields(pairs: dict[str, str]) -> Manifest:
    return {_FIELDS.get(key, key): value(text, "Any") if key != "cap" else _texts(text) for key, text in pairs.items()}


def _node(name: str, words: list[str]) -> Manifest:
    labels: dict[str, str] = {}
    allocatable = {"cpu": "192", "memory": "2Ti", "pods": "110"}
    if words and "=" not in words[0]:
        count, _, card = words.pop(0).partition("*")
        allocatable["nvidia.com/gpu"] = count
        labels = {
            "nvidia.com/gpu.product": card,
            "nvidia.com/gpu.count": count,
            "nvidia.com/gpu.memory": str(_MIB.get(card, 81920)),
        }
    pairs = _pairs(words)
    labels |= _texts(pairs.pop("labels", ""))
    found = _object("Node", name, _texts(pairs.pop("annotations", "")))
    if labels:
        found["metadata"]["labels"] = labels
    if "spec" in pairs:
        found["spec"] = yaml.safe_load(pairs.pop("spec"))
    allocatable |= pairs
    return {
        **found,
        "status": {"allocatable": {key: amount for key, amount in allocatable.items() if amount != "none"}},
    }


def _queue(name: str, words: list[str]) -> Manifest:
    pairs = _pairs(words)
    annotations = _texts(pairs.pop("annotations", ""))
    if "cards" in pairs:
        annotations["volcano.sh/card.quota"] = _amounts(pairs.pop("cards"))
    return _object("Queue", name, annotations, spec=_fields(pairs))


def _priority_class(name: str, words: list[str]) -> Manifest:
    return _object("PriorityClass", name, {}, value=int(words[0]), **_fields(_pairs(words[1:])))


def _group(name: str, words: list[str]) -> Manifest:
    pairs = _pairs(words)
    annotations = _texts(pairs.pop("annotations", ""))
    if "request" in pairs:
        annotations["volcano.sh/card.request"] = _amounts(pairs.pop("request"))
    minimum = {"minMember": int(pairs.pop("min"))} if "min" in pairs else {}
    return _object("PodGroup", name, annotations, spec={**minimum, **_fields(pairs)})


def _job(name: str, words: list[str]) -> Manifest:
    first = words.index("+") if "+" in words else len(words)
    pairs, tasks = _pairs(words[:first]), []
    annotations = _texts(pairs.pop("annotations", ""))
    if "request" in pairs:
        annotations["volcano.sh/card.request"] = _amounts(pairs.pop("request"))
    part: list[str] = []
    for word in [*words[first + 1 :], "+"]:
        if word == "+" and part:
            tasks.append(_task(*part))
            part = []
        elif word != "+":
            part.append(word)
    fields = _fields({"scheduler": "volcano", **pairs})
    spec = {key: found for key, found in fields.items() if found != "none"}
    return _object("Job", name, annotations, spec={**spec, "tasks": tasks})


def _task(name: str, *words: str) -> Manifest:
    name, _, count = name.partition("*")
    pairs = _pairs(list(words))
    own: dict[str, str] = {key: pairs.pop(key) for key in _OF_TASKS if key in pairs}
    return {"name": name, "replicas": int(count or 1), **_fields(own), "template": _template(pairs)}


def _template(pairs: dict[str, str]) -> Manifest:
    """Metadata and spec of a pod."""
    annotations = {key: pairs.pop(short) for short, key in _NOTES.items() if short in pairs}
    annotations |= _texts(pairs.pop("annotations", ""))
    labels = _texts(pairs.pop("labels", ""))
    metadata = {key: found for key, found in (("labels", labels), ("annotations", annotations)) if found}
    requests = {key: pairs.pop(key) for key in ("cpu", "memory") if key in pairs} | _texts(pairs.pop("requests", ""))
    limits = _texts(pairs.pop("limits", ""))
    if "gpu" in pairs:
        limits["nvidia.com/gpu"] = pairs.pop("gpu")
    amounts = {key: found for key, found in (("requests", requests), ("limits", limits)) if found}
    container: Manifest = {"name": "main", "image": "busybox", **({"resources": amounts} if amounts else {})}
    if "port" in pairs:
        port = int(pairs.pop("port"))
        container["ports"] = [{"containerPort": port, "hostPort": port}]
    return {"metadata": metadata, "spec": {"containers": [container], **_fields(pairs)}}


def _deployment(name: str, words: list[str]) -> Manifest:
    name, _, count = name.partition("*")
    pairs = _pairs(words)
    notes = _texts(pairs.pop("notes", ""))
    template = _template({"scheduler": "volcano", **pairs})
    template["metadata"]["labels"] = {"app": name, **template["metadata"].get("labels", {})}
    selector = {"matchLabels": {"app": template["metadata"]["labels"]["app"]}}
    spec = {"replicas": int(count), "selector": selector, "template": template}
    return _object("Deployment", name, notes, spec=spec)


def _pod(name: str, words: list[str]) -> Manifest:
    pairs = _pairs(words)
    namespace, slash, name = name.rpartition("/")
    status = {"status": yaml.safe_load(pairs.pop("status"))} if "status" in pairs else {}
    made = _template({"scheduler": "volcano", **pairs})
    if made["spec"]["schedulerName"] == "none":
        del made["spec"]["schedulerName"]
    metadata = {"name": name, **({"namespace": namespace} if slash else {}), **made["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made["spec"], **status}


def _slice(name: str, words: list[str]) -> Manifest:
    models = [model for part in words[0].split("+") for model in [part.partition("*")[2]] * int(part.partition("*")[0])]
    pairs = _pairs(words[1:])
    attributes = {"type": pairs.pop("type", "gpu")}
    attributes |= {key: pairs.pop(key) for key in ("profile",) if key in pairs}
    fields = _fields(pairs)
    devices = []
    for number, model in enumerate(models):
        texts = {**attributes, "productName": model.replace("-", " ")}
        found = {"attributes": {key: {"string": text} for key, text in texts.items()}}
        devices.append({"name": f"g{number}", **found, **fields})
    spec = {
        "driver": "gpu.nvidia.com",
        "nodeName": name,
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
    }
    return _object("ResourceSlice", name, {}, spec=spec)


def _unquoted(text: str) -> str:
    return text.strip("'")


def _device_class(name: str, words: list[str]) -> Manifest:
    pairs = _pairs(words)
    expressions = ['device.driver == "gpu.nvidia.com"', *([_unquoted(pairs.pop("cel"))] if "cel" in pairs else [])]
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return _object("DeviceClass", name, {}, spec={"selectors": selectors, **_fields(pairs)})


def _claim_spec(pairs: dict[str, str]) -> Manifest:
    exactly: Manifest = {"deviceClassName": pairs.pop("class"), "count": int(pairs.pop("count", "1"))}
    if "cel" in pairs:
        exactly["selectors"] = [{"cel": {"expression": _unquoted(pairs.pop("cel"))}}]
    if "mode" in pairs:
        exactly["allocationMode"] = pairs.pop("mode")
        if exactly["allocationMode"] == "All":
            del exactly["count"]
    if "first" in pairs:
        alternatives = []
        for number, each in enumerate(pairs.pop("first").split(",")):
            count, _, model = each.rpartition("*")
            cel = f'device.attributes["gpu.nvidia.com"].productName == "{model.replace("-", " ")}"'
            alternative = {"name": f"a{number}", "count": int(count or 1), "selectors": [{"cel": {"expression": cel}}]}
            alternatives.append({"deviceClassName": exactly["deviceClassName"], **alternative})
        return {"devices": {"requests": [{"name": "r", "firstAvailable": alternatives}]}}
    return {"devices": {"requests": [{"name": "r", "exactly": {**exactly, **_fields(pairs)}}]}}


def _claim(name: str, words: list[str]) -> Manifest:
    found = _object("ResourceClaim", name, {}, spec=_claim_spec(_pairs(words)))
    return _merged(found, {"metadata": {"namespace": "default"}})


def _claim_template(name: str, words: list[str]) -> Manifest:
    found = _object("ResourceClaimTemplate", name, {}, spec={"spec": _claim_spec(_pairs(words))})
    return _merged(found, {"metadata": {"namespace": "default"}})


_MAKERS: Final[dict[str, Callable[[str, list[str]], Manifest]]] = {
    "node": _node,
    "queue": _queue,
    "priority_class": _priority_class,
    "group": _group,
    "job": _job,
    "deployment": _deployment,
    "pod": _pod,
    "slice": _slice,
    "device_class": _device_class,
    "resource_claim": _claim,
    "claim_template": _claim_template,
}
