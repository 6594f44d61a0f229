"""Findings about ResourceClaims in manifests: missing objects, selectors, claims that card quotas do not support."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.cel.program import Program
from capcard_sched.devices.claims import AllocationError, Claim, plan_claim
from capcard_sched.devices.pool_faults import card_faults, pool_faults
from capcard_sched.devices.selectors import compile_selector
from capcard_sched.framework.toolkit.device_cards import accepted_cards, device_offers
from capcard_sched.model.cards import discover_cards
from capcard_sched.model.device_objects import (
    MAX_RESULTS,
    DeviceClaim,
    DeviceClassObject,
    ResourceClaimObject,
    ResourceClaimTemplateObject,
    ResourceSliceObject,
)
from capcard_sched.model.kinds import group_of, is_native, kind_of
from capcard_sched.model.pod_claims import PodClaim
from capcard_sched.plugins.capacity_card.claim_cards import ClaimCards
from capcard_sched.state.changes import Changes
from capcard_sched.state.devices import DeviceTable
from capcard_sched.state.invalid_objects import InvalidObjects
from capcard_sched.validation.checks import Finding, listed
from capcard_sched.validation.inventory import allocatable, as_maps, object_name, texts, value_at
from capcard_sched.validation.object_checks import OUR_SCHEDULERS
from capcard_sched.validation.structure import check_object
from capcard_sched.validation.templates import JOB_TEMPLATE, job_of_cron, templates_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.devices.pool_faults import PoolFault
    from capcard_sched.model.device_objects import DeviceRequest, ExactRequest
    from capcard_sched.validation.checks import Severity

    Json = dict[str, Any]

_GROUP: Final = "resource.k8s.io"
_OBJECTS: Final = {
    "ResourceSlice": ResourceSliceObject,
    "DeviceClass": DeviceClassObject,
    "ResourceClaim": ResourceClaimObject,
    "ResourceClaimTemplate": ResourceClaimTemplateObject,
}
#: Of namespaces whose claims may have `adminAccess`.
_ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"
_NEVER: Final = "the pod is never bound"


def check_claims(objects: Sequence[Json], *, card_quotas: bool) -> Iterator[tuple[int, Finding]]:
    """The findings, each with the index of its object. `card_quotas`: whether cards have quotas.

    Names are checked only against input with objects of this API group: classes and templates of a cluster may be
    elsewhere. Malformed objects are left to the checks of the structure.
    """
    checks = _Checks(card_quotas=card_quotas)
    read = [checks.add(obj) for obj in objects]
    for index, (obj, decoded) in enumerate(zip(objects, read, strict=True)):
        if decoded is not None:
            found = checks.object(decoded)
        else:
            found = checks.workload(obj) if checks.has_devices and is_native(obj) else iter(())
        for finding in found:
            yield index, finding


def device_cards(objects: Sequence[Json]) -> dict[str, int]:
    """Card to thousandths of the devices of ResourceSlices, without those that device plugins offer on their nodes."""
    checks = _Checks(card_quotas=False)
    for obj in objects:
        checks.add(obj)
    plugin_nodes = {
        object_name(obj): discover_cards(texts(obj, "metadata", "labels"), allocatable(obj)).cards
        for obj in objects
        if kind_of(obj) == "Node"
    }
    return {
        card: amount
        for card, nodes in checks.totals().items()
        if (amount := sum(held for node, held in nodes.items() if card not in plugin_nodes.get(node, ())))
    }


class _Checks:
    def __init__(self, *, card_quotas: bool) -> None:
        self._table = DeviceTable(Changes(), InvalidObjects())
        self._cards = ClaimCards()
        self._card_quotas = card_quotas
        #: Driver and name of the pools with a finding.
        self._reported: set[tuple[str, str]] = set()
        #: By pool, once all objects are added.
        self._faults: dict[tuple[str, str], list[PoolFault]] = {}
        #: Whether the input has classes, slices, claims or templates.
        self.has_devices = False
        #: Labels of the Namespaces.
        self._namespaces: dict[str, dict[str, str]] = {}

    def add(self, obj: Json) -> msgspec.Struct | None:
        """The decoded object of the API group; None for others, and those with an error of their own."""
        kind = str(obj.get("kind"))
        if kind_of(obj) == "Namespace":
            self._namespaces[object_name(obj)] = texts(obj, "metadata", "labels")
        if kind not in _OBJECTS or group_of(str(obj.get("apiVersion") or "")) != _GROUP:
            return None
        self.has_devices = True
        try:
            decoded: msgspec.Struct = msgspec.convert(obj, _OBJECTS[kind])
        except msgspec.ValidationError:
            return None
        self._table.handlers[type(decoded)](decoded)
        return None if any(check_object(kind, obj)) else decoded

    def totals(self) -> dict[str, dict[str, int]]:
        """Card to node to thousandths."""
        found: dict[str, dict[str, int]] = {}
        for offer in device_offers(self._table.inventory, self._table.ledger):
            found.setdefault(offer.card, {})[offer.node] = offer.total
        return found

    def object(self, decoded: msgspec.Struct) -> Iterator[Finding]:
        """Findings of a slice, class, claim or template."""
        if isinstance(decoded, ResourceSliceObject):
            yield from self._slice(decoded)
        elif isinstance(decoded, DeviceClassObject):
            for index, each in enumerate(decoded.spec.selectors or ()):
                found = compile_selector(each.cel.expression) if each.cel is not None else None
                if found is not None and not isinstance(found, Program):
                    yield Finding("error", f"spec.selectors[{index}].cel.expression", f"CEL compile error: {found}")
        elif isinstance(decoded, ResourceClaimObject):
            yield from self._requests(decoded.metadata.name, decoded.spec.devices, "spec.devices")
            yield from self._admin_access(decoded.metadata.namespace, decoded.spec.devices, "spec.devices")
        elif isinstance(decoded, ResourceClaimTemplateObject):
            yield from self._requests(decoded.metadata.name, decoded.spec.spec.devices, "spec.spec.devices")
            yield from self._admin_access(decoded.metadata.namespace, decoded.spec.spec.devices, "spec.spec.devices")

    def _admin_access(self, namespace: str | None, devices: DeviceClaim, field: str) -> Iterator[Finding]:
        """Requests with `adminAccess` in a namespace whose label does not allow them: API servers reject the claim."""
        labels = self._namespaces.get(namespace or "default")
        if (labels or {}).get(_ADMIN_LABEL) == "true":
            return
        severity: Severity = "warning" if labels is None else "error"
        missing = "" if labels is not None else ", which is not among the objects in the input"
        message = f'needs label {_ADMIN_LABEL}: "true" on namespace {namespace or "default"}{missing}'
        for index, request in enumerate(devices.requests or ()):
            if request.exactly is not None and request.exactly.admin_access:
                place = f"{field}.requests[{index}].exactly.adminAccess"
                yield Finding(severity, place, message, "the label, or no value")

    def _slice(self, decoded: ResourceSliceObject) -> Iterator[Finding]:
        inventory, name = self._table.inventory, decoded.metadata.name
        pool = decoded.spec.driver, decoded.spec.pool.name
        faults = self._faults.get(pool)
        if faults is None:
            faults = self._faults[pool] = list(pool_faults(inventory.slices_of(pool)))
        for fault in faults:
            if fault.slice == name:
                text = f"{fault.message}; no device of pool {'/'.join(pool)} is allocated"
                yield Finding("error", fault.field, text)
        problem = "" if pool in self._reported or faults else inventory.pool_problem(pool)
        if problem:  # at the first slice of the pool
            self._reported.add(pool)
            yield Finding(
                "warning", "spec.pool", f"pool {'/'.join(pool)} is {problem}; none of its devices is allocated"
            )
        for fault in card_faults(inventory.slices[name]) if self._card_quotas else ():
            yield Finding("error", fault.field, fault.message)

    def _requests(self, name: str, devices: DeviceClaim, field: str) -> Iterator[Finding]:
        classes, missing = self._table.inventory.classes, False
        for index, request in enumerate(devices.requests or ()):
            if request.exactly is not None and request.exactly.count > MAX_RESULTS:
                message = f"{request.exactly.count} devices exceed the limit of a claim: pods with it are never bound"
                yield Finding("error", f"{field}.requests[{index}].exactly.count", message, f"at most {MAX_RESULTS}")
            for path, each in _alternatives(request):
                if each.device_class_name and each.device_class_name not in classes:
                    missing = True
                    message = f'DeviceClass "{each.device_class_name}" is not among the objects in the input'
                    yield Finding(
                        "warning",
                        f"{field}.requests[{index}].{path}.deviceClassName",
                        f"{message}: pods with the claim stay pending",
                        listed(classes),
                    )
        if missing:
            return
        claim = Claim("", name, "", None, False, devices, None, frozenset())
        try:
            plan_claim(claim, classes)
        except AllocationError as error:
            text = str(error).replace(f"claim {claim.key}", f"claim {name}")
            yield Finding("error", f"{field}.requests", f"{text}: pods with the claim are never bound")

    def workload(self, obj: Json) -> Iterator[Finding]:
        """Findings of the pods of a workload."""
        job = job_of_cron(obj)
        at = f"{JOB_TEMPLATE}." if job is not None else ""
        namespace = str(value_at(obj, "metadata", "namespace") or "default")
        for template in templates_of(job or obj) if kind_of(job or obj) != "PodGroup" else ():
            entries = as_maps(value_at(template.body, "spec", "resourceClaims"))
            if not entries or template.scheduler not in OUR_SCHEDULERS:
                continue
            field = f"{at}{template.path}.spec.resourceClaims" if template.path else f"{at}spec.resourceClaims"
            claims: list[PodClaim] = []
            for index, entry in enumerate(entries):
                claim, source = entry.get("resourceClaimName"), entry.get("resourceClaimTemplateName")
                if isinstance(claim, str) and claim:
                    claims.append(PodClaim(object_name(entry), claim))
                    known, kind, key = set(self._table.ledger.claims), "ResourceClaim", "resourceClaimName"
                elif isinstance(source, str) and source:
                    claims.append(PodClaim(object_name(entry), "", source))
                    known, kind, key = set(self._table.templates), "ResourceClaimTemplate", "resourceClaimTemplateName"
                else:
                    continue
                name = claim or source
                if f"{namespace}/{name}" not in known:
                    message = f'{kind} "{name}" of namespace {namespace} is not among the objects in the input'
                    names = [each.partition("/")[2] for each in known if each.startswith(f"{namespace}/")]
                    yield Finding(
                        "warning", f"{field}[{index}].{key}", f"{message}: the pod stays pending", listed(names)
                    )
            if self._card_quotas:
                yield from self._charges(namespace, claims, field, accepted_cards(template.annotations))

    def _charges(
        self, namespace: str, claims: Sequence[PodClaim], field: str, names: tuple[str, ...]
    ) -> Iterator[Finding]:
        """The claims of a pod that card quotas do not support, and those that they do not count."""
        table = self._table
        self._cards.read(table.inventory, table.ledger.claims, table.templates)
        demand = self._cards.demand(namespace, claims, names)
        if demand.error:
            yield Finding("warning", field, f"{demand.error}: {_NEVER}")
        for device, driver, attributes in self._cards.nameless(namespace, claims):
            message = (
                f"claims of the pod match device {device} of driver {driver}, which is no card without the "
                f"attributes {' and '.join(attributes)}: it costs no card quota"
            )
            yield Finding("warning", field, message, "devices with the attributes that the driver publishes")


def _alternatives(request: DeviceRequest) -> list[tuple[str, ExactRequest]]:
    if request.exactly is not None:
        return [("exactly", request.exactly)]
    return [(f"firstAvailable[{index}]", each) for index, each in enumerate(request.first_available or ())]
