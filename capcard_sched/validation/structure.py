"""Validates input objects as an API server does: field constraints, and rules about a whole object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from capcard_sched.model.quantity import parse_quantity
from capcard_sched.validation.checks import Finding
from capcard_sched.validation.constraints import COMMON_RULES, RULES, quantity
from capcard_sched.validation.fieldpath import describe, field_path, shown
from capcard_sched.validation.job_structure import check_job_structure
from capcard_sched.validation.names import is_subdomain
from capcard_sched.validation.schemas import SHAPES, PlainShape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.validation.constraints import Path
    from capcard_sched.validation.inventory import Json

_NAME_FORM = 'lower-case letters, digits, "-" and ".", starting and ending with a letter or digit'


def check_object(kind: str, obj: Json) -> Iterator[Finding]:
    """Yields the problems of a whole object; a wrong type is the only one reported."""
    yield from list(check_fields(kind, obj)) or _check_whole(kind, obj)


def check_fields(kind: str, obj: Json) -> Iterator[Finding]:
    """Yields the problems of the present fields; the body of a patch may omit others."""
    metadata = obj.get("metadata")
    if isinstance(metadata, dict):
        fields = ("labels", "annotations")
        problems = [each for field in fields for each in _strings(metadata.get(field), ("metadata", field))]
        if problems:  # the decoder would report the same again
            yield from problems
            return
    try:
        msgspec.convert(obj, SHAPES.get(kind, PlainShape))
    except msgspec.ValidationError as error:
        yield describe(error, obj)
        return
    for path, check in (*COMMON_RULES, *RULES.get(kind, ())):
        for place, value in _values(obj, path, ()):
            text = check(value)
            if text is not None:
                yield Finding("error", field_path(place), text)


def with_text_quantities(kind: str, obj: Json) -> Json:
    """Converts quantities that YAML decoded as numbers to strings, the form of an API server.

    Changes `obj` in place, which must have passed `check_fields`.
    """
    for path, check in RULES.get(kind, ()):
        if check is quantity:
            for place, value in _values(obj, path, ()):
                if not isinstance(value, str):
                    holder: Any = obj
                    for step in place[:-1]:
                        holder = holder[int(step)] if isinstance(holder, list) else holder[step]
                    holder[place[-1]] = str(value)
    return obj


def check_name(obj: Json, namespaced: bool | None) -> Iterator[Finding]:
    """Yields problems of `metadata.name` and `metadata.namespace`: absent, not a string, or of a wrong form."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        if metadata is None:
            yield Finding("error", "metadata.name", "is required")
        else:
            yield Finding("error", "metadata", f"expected a mapping, got {shown(metadata)}")
        return
    for field in ("name", "namespace"):
        value = metadata.get(field)
        path = f"metadata.{field}"
        if value is None or value == "":
            if field == "name":
                yield Finding("error", path, "is required")
        elif not isinstance(value, str):
            yield Finding("error", path, f"expected a string, got {shown(value)}")
        elif namespaced is not None and not is_subdomain(value):
            yield Finding("error", path, f"{shown(value)} is not a valid name: use {_NAME_FORM}")


def _strings(values: Any, place: Path) -> Iterator[Finding]:
    for key, value in values.items() if isinstance(values, dict) else ():
        if not isinstance(value, str):
            hint = ": put it in quotes" if not isinstance(value, dict | list) else ""
            yield Finding("error", field_path((*place, key)), f"expected a string, got {shown(value)}{hint}")


def _values(value: Any, path: Path, place: Path) -> Iterator[tuple[Path, Any]]:
    """Yields every present value under the path of a rule, with its own path."""
    if value is None:
        return
    if not path:
        yield place, value
        return
    step, rest = path[0], path[1:]
    if isinstance(value, list):
        if step == "*":
            for index, entry in enumerate(value):
                yield from _values(entry, rest, (*place, str(index)))
    elif isinstance(value, dict):
        for key in list(value) if step == "*" else (step,):
            yield from _values(value.get(key), rest, (*place, key))


# --- rules about a whole object -------------------------------------------------------------------------------------


def _check_whole(kind: str, obj: Json) -> Iterator[Finding]:
    spec = obj.get("spec") or {}
    if kind == "Pod":
        yield from _check_pod(spec, ("spec",))
    elif kind in ("Deployment", "ReplicaSet", "StatefulSet"):
        yield from _check_workload(spec)
    elif kind == "Job":
        yield from _check_job(obj)
    elif kind == "PriorityClass" and "value" not in obj:
        yield Finding("error", "value", "is required")
    elif kind == "Command":
        for field in ("action", "target"):
            if not obj.get(field):
                yield Finding("error", field, "is required")


def _check_pod(spec: Json, place: Path) -> Iterator[Finding]:
    if not spec.get("containers"):
        yield Finding("error", field_path((*place, "containers")), "is required: a pod has at least one container")
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            resources = container.get("resources") or {}
            limits = resources.get("limits") or {}
            for name, request in (resources.get("requests") or {}).items():
                if name in limits and parse_quantity(request) > parse_quantity(limits[name]):
                    path = field_path((*place, group, str(index), "resources", "requests", name))
                    yield Finding("error", path, f"{request} is more than its limit {limits[name]}")


def _check_workload(spec: Json) -> Iterator[Finding]:
    template = spec.get("template")
    if not template:
        yield Finding("error", "spec.template", "is required")
        return
    yield from _check_pod(template.get("spec") or {}, ("spec", "template", "spec"))
    wanted = (spec.get("selector") or {}).get("matchLabels") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    for key, value in wanted.items():
        if labels.get(key) != value:
            path = field_path(("spec", "selector", "matchLabels", key))
            message = f"{key}={value} is not a label of spec.template, which must match its own selector"
            yield Finding("error", path, message)


def _check_job(obj: Json) -> Iterator[Finding]:
    """The rules of the webhook, and the pod templates."""
    spec = obj.get("spec") or {}
    tasks = [
        {**task, "name": task.get("name") or f"default{index}"} for index, task in enumerate(spec.get("tasks") or ())
    ]
    for finding in check_job_structure({**obj, "spec": {**spec, "tasks": tasks}}):
        if finding.severity == "error":
            yield Finding("error", finding.field, f"{finding.message}; accepted: {finding.accepted}")
    for index, task in enumerate(tasks):
        template = task.get("template") or {}
        yield from _check_pod(template.get("spec") or {}, ("spec", "tasks", str(index), "template", "spec"))
