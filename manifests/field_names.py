"""Writes `capcard_sched/validation/field_names.json`: the fields of every kind that the product reads.

Those of Kubernetes are the models of its Python client, of the release in `requirements/`; those of Volcano are in
`crds/`. The JSON maps each kind to its type, and each type to its fields: a field to the type of its value or of the
entries of its list, `{}` and a type for a mapping of names, "" for a value without known fields.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from capcard_sched.model.kinds import KINDS

ROOT: Final = Path(__file__).parent
OUTPUT: Final = ROOT.parent / "capcard_sched" / "validation" / "field_names.json"
#: Kinds of Kubernetes to models whose name is not V1 and the kind; kinds that are only checked.
_MODELS: Final = {
    "Event": "CoreV1Event",
    "ResourceClaim": "ResourceV1ResourceClaim",
    "PodGroup.scheduling.k8s.io/v1beta1": "V1beta1PodGroup",
    "DaemonSet.apps/v1": "V1DaemonSet",
    "Job.batch/v1": "V1Job",
    "CronJob.batch/v1": "V1CronJob",
}
#: Kinds of Cluster Autoscaler: their fields are not checked.
_UNCHECKED: Final = frozenset({"ProvisioningRequest"})
#: Models that share their name with a kind.
_NAMES: Final = {"CoreV1ResourceClaim": "ContainerClaim"}
#: Parts of our kinds that have the type of a model or of another of our kinds.
_PARTS: Final = {
    "Job.spec.tasks.template": "PodTemplateSpec",
    "Job.spec.volumes.volumeClaim": "PersistentVolumeClaimSpec",
    "CronJob.spec.jobTemplate.metadata": "ObjectMeta",
    "CronJob.spec.jobTemplate.spec": "Job.spec",
}
#: Fields of Volcano 1.16 that our CustomResourceDefinitions may lack.
_MORE: Final = {
    "PodGroup.spec": ("topologyAffinity",),
    "PodGroup.spec.topologyAffinity": ("podGroupAffinity", "subGroupAffinity", "subGroupAntiAffinity"),
    "Queue.spec": ("allowedNamespaces",),
}

Types = dict[str, dict[str, str]]


def field_names() -> dict[str, Any]:
    """The content of the file."""
    from kubernetes.client import models

    types: Types = {}
    kinds = {}
    ours = dict(map(_definition, sorted((ROOT / "crds").glob("*.yaml"))))
    for kind in (*(one.name for one in KINDS if one.name not in _UNCHECKED), *_MODELS):
        if kind in ours:
            kinds[kind] = kind
            _add_schema(types, kind, ours[kind])
        else:
            kinds[kind] = _add_model(types, models, _MODELS.get(kind, f"V1{kind}"), kind)
    for name in ("PodTemplateSpec", "PersistentVolumeClaimSpec", "ObjectMeta"):
        _add_model(types, models, f"V1{name}")
    for holder, fields in _MORE.items():
        types[holder] = dict.fromkeys(fields, "") | types[holder]
    return {"kinds": kinds, "types": types}


def _add_model(types: Types, models: Any, model: str, kind: str = "") -> str:
    """Add a model and all that it refers to. Returns the name of its type: the kind, where it is one."""
    name = kind or _NAMES.get(model) or re.sub(r"^(Core)?V[0-9]+(alpha[0-9]+|beta[0-9]+)?", "", model)
    if name in types:
        return name
    fields: dict[str, str] = {}
    types[name] = fields
    found = getattr(models, model)
    for attribute, of in found.openapi_types.items():
        prefix = "{}" if of.lower().startswith("dict[") else ""
        inner = re.findall(r"\w+", of)[-1]
        is_model = inspect.isclass(getattr(models, inner, None)) and hasattr(getattr(models, inner), "openapi_types")
        fields[found.attribute_map[attribute]] = prefix + _add_model(types, models, inner) if is_model else ""
    return name


def _definition(path: Path) -> tuple[str, Any]:
    crd = yaml.safe_load(path.read_text("utf-8"))
    return crd["spec"]["names"]["kind"], crd["spec"]["versions"][-1]["schema"]["openAPIV3Schema"]


def _add_schema(types: Types, name: str, schema: Any) -> str:
    """Add the named properties of a schema and of those inside it. Returns the name of its type; "" without any."""
    if name in _PARTS:
        return _PARTS[name]
    if name.endswith(".metadata") and name.count(".") == 1:
        return "ObjectMeta"
    schema = schema.get("items", schema)
    if isinstance(schema.get("additionalProperties"), dict):
        inner = _add_schema(types, name, schema["additionalProperties"])
        return "{}" + inner if inner else ""
    properties = schema.get("properties")
    if not properties:
        return ""
    types[name] = {}
    for field, of in properties.items():
        types[name][field] = _add_schema(types, f"{name}.{field}", of)
    return name


def text() -> str:
    """The text of the file: one type per line."""
    content = field_names()
    types = sorted(content["types"].items())
    lines = [f"{json.dumps(name)}: {json.dumps(fields, sort_keys=True)}" for name, fields in types]
    return f'{{"kinds": {json.dumps(content["kinds"], sort_keys=True)},\n"types": {{\n' + ",\n".join(lines) + "\n}}\n"


if __name__ == "__main__":
    OUTPUT.write_text(text(), "utf-8")
    sys.stdout.write(f"{OUTPUT.relative_to(ROOT.parent)}\n")
