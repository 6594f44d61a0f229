"""Findings about features of pods that are not supported, from the table of `model.unsupported`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capcard_sched.model.annotations import QUEUE_ALLOCATION_GATE
from capcard_sched.model.quoting import quoted
from capcard_sched.model.unsupported import (
    UnsupportedFields,
    device_class_of,
    unsupported_by,
    unsupported_text,
)
from capcard_sched.validation.checks import Finding, annotation_field, listed
from capcard_sched.validation.inventory import texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from capcard_sched.validation.checks import Severity
    from capcard_sched.validation.inventory import Inventory, Json


def template_text(body: Json) -> str:
    """The reason for which the pods of a template are never bound; "" for none, and for fields of a wrong type."""
    return unsupported_text(_fields_of(body), claims=True)


def _fields_of(body: Json) -> UnsupportedFields:
    try:
        return msgspec.convert(body.get("spec") or {}, UnsupportedFields)
    except msgspec.ValidationError:
        return UnsupportedFields()


def check_features(
    body: Json, path: str, requests: Iterable[str], inventory: Inventory, severity: Severity
) -> Iterator[Finding]:
    """Unsupported features of a pod, or of a pod template at `path`, with this severity.

    Warnings about its gates, and about resources of missing DeviceClasses.

    `requests`: names of requested resources.

    Fields of a wrong type are left to the checks of the structure.
    """
    at = f"{path}." if path else ""
    for found in unsupported_by(_fields_of(body), claims=inventory.allocates_claims):
        message = f"{found.feature.name} {found.feature.lacks} ({found.names}): the pod is never bound"
        yield Finding(severity, f"{at}spec.{found.feature.field}", message, found.feature.accepted)
    for resource in requests:
        name = device_class_of(resource, {})
        if name and inventory.has_nodes and name not in inventory.device_classes:
            message = f'DeviceClass "{name}" of {resource} is not among the objects in the input: the pod stays pending'
            yield Finding("warning", f"{at}spec.containers", message, listed(inventory.device_classes))
    asked = texts(body, "metadata", "annotations").get(QUEUE_ALLOCATION_GATE, "true")
    if asked != "true":
        field = annotation_field(QUEUE_ALLOCATION_GATE, f"{at}metadata")
        yield Finding("warning", field, f"has no effect: {quoted(asked)} adds no scheduling gate", "true")
