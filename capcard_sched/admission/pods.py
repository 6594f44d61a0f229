"""Admission of pods and PodGroups: resource groups, default queues, and warnings about cards."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from capcard_sched.admission.review import DEFAULT_QUEUE, ROOT_QUEUE, AdmissionResult, JsonPatch, verdict
from capcard_sched.model import annotations as keys
from capcard_sched.model.decode_errors import field_problem
from capcard_sched.model.groups import group_policies
from capcard_sched.model.yaml_reader import YamlError, read_document
from capcard_sched.validation.checks import Finding
from capcard_sched.validation.inventory import texts
from capcard_sched.validation.names import shown
from capcard_sched.validation.object_checks import check_object
from capcard_sched.validation.pod_templates import check_budgets
from capcard_sched.validation.unsupported_fields import check_affinity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from capcard_sched.admission.review import ClusterView
    from capcard_sched.validation.inventory import Json


def default_pod_group(obj: Json, namespace: str, view: ClusterView) -> AdmissionResult:
    """The queue that the namespace names, for a group in the default queue."""
    spec = obj.get("spec")
    queue = view.default_queue(namespace)
    current = spec.get("queue") if isinstance(spec, dict) else None
    if not queue or (current and current != DEFAULT_QUEUE):
        return AdmissionResult()
    patch = JsonPatch(obj)
    patch.set(queue, "spec", "queue")
    return AdmissionResult(patch=tuple(patch.operations))


def check_new_pod_group(obj: Json, view: ClusterView) -> AdmissionResult:
    """What is wrong with a new PodGroup, and warnings about its cards."""
    spec = obj.get("spec")
    body = spec if isinstance(spec, dict) else {}
    queue = body.get("queue") or DEFAULT_QUEUE
    return verdict(chain(_check_queue(str(queue), view), _check_subgroups(body), check_object(obj, view.inventory)))


def check_pod_group_update(obj: Json, old: Json) -> AdmissionResult:
    """What is wrong with a changed `subGroupPolicy` or `topologyAffinity`.

    Writes of other fields are admitted whatever it contains: controllers must be able to write an object that was
    created without the webhook.
    """
    body, former = (spec if isinstance(spec := one.get("spec"), dict) else {} for one in (obj, old))
    changed = {field for field in ("subGroupPolicy", "topologyAffinity") if body.get(field) != former.get(field)}
    groups = _check_subgroups(body) if "subGroupPolicy" in changed else ()
    return verdict(chain(groups, check_affinity(obj) if "topologyAffinity" in changed else ()))


def _check_subgroups(spec: Json) -> Iterator[Finding]:
    """What is wrong with `subGroupPolicy`."""
    problems: list[str] = []
    group_policies(spec.get("subGroupPolicy"), problems)
    for problem in problems:
        field, _, text = problem.partition(": ")
        yield Finding("error", field, text.partition(";")[0], "a policy with a name, a size, a selector and one tier")


def _check_queue(name: str, view: ClusterView) -> Iterator[Finding]:
    if "/" in name:
        return  # `check_object` checks it
    queue = view.queue(name)
    if queue is None:
        known = ", ".join(sorted(entry.name for entry in view.queues() if entry.name != ROOT_QUEUE)[:10])
        yield Finding("error", "spec.queue", f"unable to find queue: {name}", known or "an existing queue")
    elif queue.state not in {"", "Open"}:
        message = f"can only submit PodGroup to queue with state `Open`, queue `{name}` status is `{queue.state}`"
        yield Finding("error", "spec.queue", message, "an open queue")


class GroupMatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which pods belong to a resource group: those of some namespaces, or those with an annotation."""

    key: str = ""
    value: tuple[str, ...] = ()


class ResourceGroup(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One entry of `resourceGroups` in the admission configuration."""

    resource_group: str
    #: Key "namespace" or "annotation", and the values that match; without one, the annotation
    #: `volcano.sh/resource-group` must have the name of the group.
    object: GroupMatch = GroupMatch()
    scheduler_name: str = ""
    tolerations: tuple[dict[str, Any], ...] = ()
    labels: dict[str, str] = {}
    #: A JSON or YAML text of a Kubernetes affinity.
    affinity: str = ""


class AdmissionConfig(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The admission configuration file."""

    resource_groups: tuple[ResourceGroup, ...] = ()


class AdmissionConfigError(ValueError):
    """The admission configuration cannot be used. The text names the field and the accepted form."""


def parse_admission_config(text: str) -> AdmissionConfig:
    """The configuration file, YAML. Raises AdmissionConfigError."""
    try:
        document = read_document(text).value or {}
    except YamlError as error:
        raise AdmissionConfigError(f"admission configuration: {error}") from None
    try:
        config = msgspec.convert(document, AdmissionConfig)
    except msgspec.ValidationError as error:
        raise AdmissionConfigError(f"admission configuration: {field_problem(error, document)}") from None
    for index, group in enumerate(config.resource_groups):
        field = f"resourceGroups[{index}]"
        if group.object.key not in {"", "namespace", "annotation"}:
            message = f"{field}.object.key: {shown(group.object.key)} is not accepted (accepted: namespace, annotation)"
            raise AdmissionConfigError(message)
        if group.affinity and not isinstance(_affinity(group, field), dict):
            raise AdmissionConfigError(f"{field}.affinity: is not a mapping (accepted: a Kubernetes affinity)")
    return config


def _affinity(group: ResourceGroup, field: str) -> object:
    try:
        return read_document(group.affinity).value
    except YamlError as error:
        raise AdmissionConfigError(f"{field}.affinity: {error}") from None


def wants_queue_gate(obj: Json) -> bool:
    """Whether a pod has the annotation of the queue allocation gate."""
    return texts(obj, "metadata", "annotations").get(keys.QUEUE_ALLOCATION_GATE) == "true"


def with_queue_gate(gates: object) -> list[Any]:
    """`spec.schedulingGates` with the queue allocation gate, once."""
    present = gates if isinstance(gates, list) else []
    named = any(isinstance(gate, dict) and gate.get("name") == keys.QUEUE_ALLOCATION_GATE for gate in present)
    return present if named else [*present, {"name": keys.QUEUE_ALLOCATION_GATE}]


def default_pod(
    obj: Json, namespace: str, groups: Sequence[ResourceGroup], gated: Collection[str] = ()
) -> AdmissionResult:
    """Node selector, affinity, tolerations and scheduler of the first resource group that the pod belongs to.

    `gated`: schedulers whose annotated pods get the queue allocation gate.
    """
    annotations = texts(obj, "metadata", "annotations")
    group = next((each for each in groups if _matches(each, namespace, annotations)), None)
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return AdmissionResult()
    patch = JsonPatch(obj)
    if group is not None:
        _place(patch, spec, group)
    scheduler = (group.scheduler_name if group is not None and _is_default(spec) else "") or spec.get("schedulerName")
    gates = spec.get("schedulingGates")
    if scheduler in gated and wants_queue_gate(obj) and with_queue_gate(gates) != gates:
        patch.set(with_queue_gate(gates), "spec", "schedulingGates")
    return AdmissionResult(patch=tuple(patch.operations))


def _is_default(spec: Json) -> bool:
    return spec.get("schedulerName") in {None, "", "default-scheduler"}


def _place(patch: JsonPatch, spec: Json, group: ResourceGroup) -> None:
    """What a resource group sets."""
    selector = spec.get("nodeSelector") or {}
    missing = {key: value for key, value in group.labels.items() if key not in selector}
    if missing:
        patch.set({**selector, **missing}, "spec", "nodeSelector")
    if group.affinity and not spec.get("affinity"):
        patch.set(_affinity(group, ""), "spec", "affinity")
    present = spec.get("tolerations") or []
    more = [toleration for toleration in group.tolerations if toleration not in present]
    if more:
        patch.set([*present, *more], "spec", "tolerations")
    if group.scheduler_name and _is_default(spec):
        patch.set(group.scheduler_name, "spec", "schedulerName")


def _matches(group: ResourceGroup, namespace: str, annotations: dict[str, str]) -> bool:
    if group.object.key == "namespace":
        return namespace in group.object.value
    if group.object.key == "annotation":
        wanted = [value.partition(":") for value in group.object.value]
        return any(annotations.get(key.strip()) == value.strip() for key, _, value in wanted)
    return annotations.get(keys.RESOURCE_GROUP) == group.resource_group


def check_new_pod(obj: Json, view: ClusterView) -> AdmissionResult:
    """What is wrong with a new pod of our scheduler, and warnings about its cards."""
    return verdict(chain(check_budgets(texts(obj, "metadata", "annotations")), check_object(obj, view.inventory)))


def check_workload(obj: Json, view: ClusterView) -> AdmissionResult:
    """Warnings about the cards of a Deployment, StatefulSet, DaemonSet, ReplicaSet or Job; it is never rejected."""
    return verdict(
        finding if finding.severity != "error" else msgspec.structs.replace(finding, severity="warning")
        for finding in check_object(obj, view.inventory)
    )
