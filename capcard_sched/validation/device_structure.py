"""Rules of an API server about objects of dynamic resource allocation: slices, classes, claims and DeviceTaintRules.

Where versions of Kubernetes differ, the largest accepted number counts.
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from capcard_sched.model.decode_errors import field_path
from capcard_sched.model.device_objects import ALL, EXACT_COUNT, MAX_ALTERNATIVES, MAX_RESULTS
from capcard_sched.model.quantity import parse_quantity
from capcard_sched.validation.checks import Finding
from capcard_sched.validation.names import (
    LABEL_FORM,
    SUBDOMAIN_FORM,
    check_label_value,
    check_qualified,
    is_label,
    is_subdomain,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from capcard_sched.validation.inventory import Json

#: Entries: constraints and configurations of a claim, requests that one of them names, configurations of a class,
#: selectors of a class or request, counter sets of a slice, counter sets that a device consumes of.
_MOST: Final = 32
#: Of a request, and of a device.
_MOST_TOLERATIONS, _MOST_TAINTS = 16, 16
#: Of a device, of each of the two kinds.
_MOST_CONDITIONS: Final = 4
#: Bytes of a CEL expression.
_MOST_EXPRESSION: Final = 10 * 1024
#: Devices of a slice.
_MOST_DEVICES: Final = 128
#: Attributes and capacities of a device; counters of a set, and of what a device consumes of one.
_MOST_ENTRIES: Final = 32
#: Bytes of the value of an attribute.
_MOST_VALUE: Final = 64
#: Characters of the name of a driver; of the domain and of the rest of the name of an attribute or capacity.
_MOST_DRIVER: Final = 63
_MOST_DOMAIN, _MOST_ID = 63, 32
_ATTRIBUTE_TYPES: Final = ("int", "bool", "string", "version", "ints", "bools", "strings", "versions")
_SLICE_NODES: Final = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_DEVICE_NODES: Final = ("nodeName", "nodeSelector", "allNodes")
_ID: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER, _WORD = r"(0|[1-9][0-9]*)", r"(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)"
_VERSION: Final = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_WORD}(\.{_WORD})*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)


def check_device_object(kind: str, obj: Json) -> Iterator[Finding]:
    """Yields the problems of an object whose fields have their types."""
    spec = obj.get("spec") or {}
    if kind == "ResourceSlice":
        yield from _slice(spec)
    elif kind == "DeviceClass":
        yield from _selectors(spec.get("selectors"), "spec.selectors")
        yield from _configs(spec.get("config"), "spec.config", {})
        name = spec.get("extendedResourceName")
        if name is not None and not _is_extended_resource(name):
            form = "DOMAIN/NAME outside kubernetes.io, such as nvidia.com/gpu"
            yield from _error("spec.extendedResourceName", f"{shown(name)} is not an extended resource: use {form}")
    elif kind == "ResourceClaim":
        yield from _claim(spec.get("devices") or {}, "spec.devices")
    elif kind == "ResourceClaimTemplate":
        yield from _claim((spec.get("spec") or {}).get("devices") or {}, "spec.spec.devices")
    elif kind == "DeviceTaintRule":
        yield from _taint(spec.get("taint") or {}, "spec.taint")


def _is_extended_resource(name: str) -> bool:
    is_native = "/" not in name or "kubernetes.io/" in name
    return not (is_native or name.startswith("requests.") or any(check_qualified(name, "")))


# --- entries of lists -----------------------------------------------------------------------------------------------


def _error(field: str, message: str) -> Iterator[Finding]:
    yield Finding("error", field, message)


def _key(field: str, name: str) -> str:
    """The field of one entry of a mapping."""
    return field + field_path(("x", name))[1:]


def _too_many(entries: Collection[Any], most: int, field: str) -> Iterator[Finding]:
    if len(entries) > most:
        yield from _error(field, f"has {len(entries)} entries: at most {most} are accepted")


def _entries(found: Any, most: int, field: str) -> Iterator[tuple[str, Json]]:
    """The field and value of each mapping of a list; none of a longer one, which `_too_many` reports."""
    if isinstance(found, list) and len(found) <= most:
        for index, each in enumerate(found):
            if isinstance(each, dict):
                yield f"{field}[{index}]", each


def _named(found: Any, most: int, field: str, key: str = "name") -> Iterator[Finding]:
    """Yields errors about names that are missing, no DNS label, or not distinct."""
    yield from _too_many(found or (), most, field)
    names: set[str] = set()
    for place, each in _entries(found, most, field):
        name = each.get(key) or ""
        if not name:
            yield from _error(f"{place}.{key}", f"is required: a name of {LABEL_FORM}")
        elif not is_label(name):
            yield from _error(f"{place}.{key}", f"{shown(name)} is not a valid name: use {LABEL_FORM}")
        elif name in names:
            yield from _error(f"{place}.{key}", f"{shown(name)} occurs twice: names must be distinct")
        names.add(name)


def _driver(name: Any, field: str) -> Iterator[Finding]:
    if not name or not isinstance(name, str):
        yield from _error(field, "is required: the name of a driver, such as gpu.nvidia.com")
    elif len(name) > _MOST_DRIVER or not is_subdomain(name.lower()):
        form = SUBDOMAIN_FORM.replace("253", str(_MOST_DRIVER))
        yield from _error(field, f"{shown(name)} is not the name of a driver: use {form}")


def _qualified(name: str, field: str, *, has_domain: bool = False) -> Iterator[Finding]:
    """The name of an attribute or capacity: NAME or DOMAIN/NAME. More than one slash is accepted, and matches none."""
    parts = name.split("/")
    domain, own = (parts[0], parts[1]) if len(parts) == 2 else ("", parts[0])
    is_valid = len(own) <= _MOST_ID and _ID.fullmatch(own) is not None
    if len(parts) == 2:
        is_valid = is_valid and len(domain) <= _MOST_DOMAIN and is_subdomain(domain if has_domain else domain.lower())
    elif len(parts) > 2 or has_domain:
        is_valid = len(parts) > 2
    if not is_valid:
        form = f"DOMAIN/NAME with at most {_MOST_ID} letters, digits and _ in NAME, such as gpu.nvidia.com/productName"
        bare = "" if has_domain else "NAME or "
        yield from _error(field, f"{shown(name)} is not the name of an attribute or capacity: use {bare}{form}")


def _one_of(holder: Json, names: Collection[str], field: str, why: str = "") -> Iterator[Finding]:
    """Yields errors unless exactly one of the fields is set; "" and false are errors, too."""
    found = []
    for name in names:
        value = holder.get(name)
        if value is None:
            continue
        found.append(name)
        if value == "":
            yield from _error(f"{field}.{name}", "must not be empty: set the name of a node, or omit the field")
        elif value is False:
            yield from _error(f"{field}.{name}", "must be true or omitted")
        elif isinstance(value, str) and not is_subdomain(value):
            yield from _error(f"{field}.{name}", f"{shown(value)} is not the name of a node: use {SUBDOMAIN_FORM}")
    accepted = f"exactly one of {', '.join(names)}"
    if not found:
        yield from _error(field, f"{accepted} is required{why}")
    elif len(found) > 1:
        yield from _error(field, f"has {' and '.join(found)}: {accepted} is accepted")


# --- slices ---------------------------------------------------------------------------------------------------------


def _slice(spec: Json) -> Iterator[Finding]:
    yield from _driver(spec.get("driver"), "spec.driver")
    pool = spec.get("pool") or {}
    name = pool.get("name") or ""
    if not name or not all(map(is_subdomain, name.split("/"))):
        given = f"{shown(name)} is not the name of a pool" if name else "is required"
        yield from _error("spec.pool.name", f"{given}: use {SUBDOMAIN_FORM}, or several of them joined by /")
    if not pool.get("resourceSliceCount"):
        yield from _error("spec.pool.resourceSliceCount", "is required: the number of ResourceSlices of the pool")
    yield from _one_of(spec, _SLICE_NODES, "spec")
    terms = (spec.get("nodeSelector") or {}).get("nodeSelectorTerms")
    if isinstance(terms, list) and len(terms) != 1:
        yield from _error("spec.nodeSelector.nodeSelectorTerms", f"has {len(terms)} terms: one is accepted")
    yield from _named(spec.get("sharedCounters"), _MOST, "spec.sharedCounters")
    for place, each in _entries(spec.get("sharedCounters"), _MOST, "spec.sharedCounters"):
        yield from _counters(each.get("counters"), f"{place}.counters")
    yield from _named(spec.get("devices"), _MOST_DEVICES, "spec.devices")
    for place, device in _entries(spec.get("devices"), _MOST_DEVICES, "spec.devices"):
        yield from _device(device, place, per_device=bool(spec.get("perDeviceNodeSelection")))


def _counters(found: Any, field: str) -> Iterator[Finding]:
    if not found:
        yield from _error(field, "is required: at least one counter")
        return
    yield from _too_many(found, _MOST_ENTRIES, field)
    for name in found:
        if not is_label(name):
            yield from _error(_key(field, name), f"{shown(name)} is not a valid name: use {LABEL_FORM}")


def _device(device: Json, place: str, *, per_device: bool) -> Iterator[Finding]:
    if per_device:
        yield from _one_of(device, _DEVICE_NODES, place, ", because the slice has perDeviceNodeSelection")
    elif given := [name for name in _DEVICE_NODES if device.get(name) is not None]:
        yield from _error(f"{place}.{given[0]}", "is accepted only with spec.perDeviceNodeSelection: true")
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    number = len(attributes) + len(capacity)
    if number > _MOST_ENTRIES:
        yield from _error(place, f"has {number} attributes and capacities: at most {_MOST_ENTRIES} are accepted")
        return
    for name, value in attributes.items():
        yield from _attribute(name, value, _key(f"{place}.attributes", name))
    for name, value in capacity.items():
        at = _key(f"{place}.capacity", name)
        yield from _qualified(name, at)
        if isinstance(value, dict):
            shared = bool(device.get("allowMultipleAllocations"))
            yield from _policy(value, f"{at}.requestPolicy", is_shared=shared)
    yield from _too_many(device.get("taints") or (), _MOST_TAINTS, f"{place}.taints")
    for at, taint in _entries(device.get("taints"), _MOST_TAINTS, f"{place}.taints"):
        yield from _taint(taint, at)
    yield from _named(device.get("consumesCounters"), _MOST, f"{place}.consumesCounters", "counterSet")
    for at, each in _entries(device.get("consumesCounters"), _MOST, f"{place}.consumesCounters"):
        yield from _counters(each.get("counters"), f"{at}.counters")
    yield from _conditions(device, place)


def _attribute(name: str, value: Any, field: str) -> Iterator[Finding]:
    yield from _qualified(name, field)
    given = [each for each in _ATTRIBUTE_TYPES if isinstance(value, dict) and value.get(each) is not None]
    if len(given) != 1:
        kinds = ", ".join(_ATTRIBUTE_TYPES)
        yield from _error(field, f"has {' and '.join(given) or 'no value'}: exactly one of {kinds} is accepted")
        return
    found = value[given[0]]
    if given[0] in ("string", "version") and len(found.encode()) > _MOST_VALUE:
        yield from _too_long(found, _MOST_VALUE, f"{field}.{given[0]}")
    elif given[0] == "version" and _VERSION.fullmatch(found) is None:
        yield from _error(f"{field}.version", f"{shown(found)} is not a semantic version such as 1.2.3")


def _too_long(text: str, most: int, field: str) -> Iterator[Finding]:
    if (length := len(text.encode())) > most:
        yield from _error(field, f"has {length} bytes: at most {most} are accepted")


def _policy(capacity: Json, field: str, *, is_shared: bool) -> Iterator[Finding]:
    policy = capacity.get("requestPolicy")
    if not isinstance(policy, dict):
        return
    values, limits = policy.get("validValues") or [], policy.get("validRange")
    if not is_shared:
        yield from _error(field, "is accepted only with allowMultipleAllocations: true")
    elif values and limits is not None:
        yield from _error(field, "has validValues and validRange: at most one of them is accepted")
    elif (values or limits is not None) and policy.get("default") is None:
        yield from _error(f"{field}.default", f"is required with {'validValues' if values else 'validRange'}")
    elif values:
        amounts, default = [parse_quantity(each) for each in values], parse_quantity(policy["default"])
        if amounts != sorted(set(amounts)):
            yield from _error(f"{field}.validValues", "must be distinct amounts in ascending order")
        elif amounts[-1] > parse_quantity(capacity.get("value", "0")):
            yield from _error(f"{field}.validValues", f"{values[-1]} exceeds the capacity {capacity.get('value', 0)}")
        elif default not in amounts:
            accepted = ", ".join(map(str, values))
            yield from _error(f"{field}.default", f"{policy['default']} is not among validValues {accepted}")
    elif isinstance(limits, dict):
        yield from _range(capacity, policy["default"], limits, field)


def _range(capacity: Json, default: Any, limits: Json, field: str) -> Iterator[Finding]:
    if limits.get("min") is None:
        yield from _error(f"{field}.validRange.min", "is required: the smallest amount of a request")
        return
    amount = capacity.get("value", "0")
    total, least = parse_quantity(amount), parse_quantity(limits["min"])
    highest = amount if limits.get("max") is None else limits["max"]
    most = parse_quantity(highest)
    if least > total:
        yield from _error(f"{field}.validRange.min", f"{limits['min']} exceeds the capacity {amount}")
    elif not least <= most <= total:
        text = f"must be between min {limits['min']} and the capacity {amount}, got {highest}"
        yield from _error(f"{field}.validRange.max", text)
    elif not least <= parse_quantity(default) <= most:
        yield from _error(f"{field}.default", f"{default} is outside validRange {limits['min']} to {highest}")
    step = parse_quantity(limits["step"]) if limits.get("step") is not None else None
    if step is None:
        return
    if step <= 0 or least + step > total:
        yield from _error(f"{field}.validRange.step", f"must be above 0, and min + step at most the capacity {amount}")
        return
    has_max = limits.get("max") is not None
    if (_rounded(default, least, step) - least) % step or (has_max and (most - least) % step):
        names = "default and max" if has_max else "default"
        yield from _error(f"{field}.validRange.step", f"{names} must be min plus a multiple of step")


def _rounded(default: Any, least: Fraction, step: Fraction) -> Fraction:
    """A default amount, rounded up where minimum and step are whole: an API server compares it so."""
    amount = parse_quantity(default)
    return Fraction(ceil(amount)) if least.denominator == step.denominator == 1 else amount


def _taint(taint: Json, field: str) -> Iterator[Finding]:
    if not taint.get("key"):
        yield from _error(f"{field}.key", "is required: the key of the taint, such as example.com/broken")
    else:
        yield from check_qualified(taint["key"], f"{field}.key")
    yield from check_label_value(taint.get("value") or "", f"{field}.value")
    if not taint.get("effect"):
        yield from _error(f"{field}.effect", "is required: NoSchedule, NoExecute or None")


def _conditions(device: Json, place: str) -> Iterator[Finding]:
    wanted, failures = device.get("bindingConditions") or [], device.get("bindingFailureConditions") or []
    for name, found in (("bindingConditions", wanted), ("bindingFailureConditions", failures)):
        yield from _too_many(found, _MOST_CONDITIONS, f"{place}.{name}")
        for index, condition in enumerate(found[:_MOST_CONDITIONS]):
            yield from check_qualified(condition, f"{place}.{name}[{index}]")
    if bool(wanted) is not bool(failures):
        names = "bindingConditions", "bindingFailureConditions"
        absent, given = names if failures else names[::-1]
        yield from _error(f"{place}.{absent}", f"is required with {given}")
    elif both := sorted(set(wanted) & set(failures)):
        text = f"{shown(both[0])} is also in bindingConditions: a condition belongs to one of them"
        yield from _error(f"{place}.bindingFailureConditions", text)


# --- classes and claims ---------------------------------------------------------------------------------------------


def _selectors(found: Any, field: str) -> Iterator[Finding]:
    yield from _too_many(found or (), _MOST, field)
    for place, each in _entries(found, _MOST, field):
        expression = (each.get("cel") or {}).get("expression")
        if not expression:
            yield from _error(f"{place}.cel.expression", "is required: a CEL expression")
        else:
            yield from _too_long(expression, _MOST_EXPRESSION, f"{place}.cel.expression")


def _configs(found: Any, field: str, requests: dict[str, set[str]]) -> Iterator[Finding]:
    yield from _too_many(found or (), _MOST, field)
    for place, each in _entries(found, _MOST, field):
        yield from _references(each.get("requests"), f"{place}.requests", requests)
        opaque = each.get("opaque")
        if not isinstance(opaque, dict):
            yield from _error(f"{place}.opaque", "is required: driver and parameters")
            continue
        yield from _driver(opaque.get("driver"), f"{place}.opaque.driver")
        if not isinstance(opaque.get("parameters"), dict):
            yield from _error(f"{place}.opaque.parameters", "is required: a mapping")


def _references(found: Any, field: str, requests: dict[str, set[str]]) -> Iterator[Finding]:
    """The names of requests in a constraint or configuration. `requests`: name to its alternatives."""
    if found is not None and not isinstance(found, list):
        yield from _error(field, f"expected a list, got {shown(found)}")
        return
    yield from _too_many(found or (), _MOST, field)
    known = sorted({*requests, *(f"{name}/{each}" for name, inner in requests.items() for each in inner)})
    names = [str(each) for each in found or ()][:_MOST]
    for index, name in enumerate(names):
        if name not in known:
            text = f"{shown(name)} is not a request of the claim: accepted: {', '.join(known[:_MOST])}"
            yield from _error(f"{field}[{index}]", text if known else "the claim has no requests: remove the name")
        elif name in names[:index]:
            yield from _error(f"{field}[{index}]", f"{shown(name)} occurs twice: names must be distinct")


def _claim(devices: Json, field: str) -> Iterator[Finding]:
    found = devices.get("requests")
    yield from _named(found, MAX_RESULTS, f"{field}.requests")
    requests: dict[str, set[str]] = {}
    for place, request in _entries(found, MAX_RESULTS, f"{field}.requests"):
        inner = _entries(request.get("firstAvailable"), MAX_ALTERNATIVES, "")
        requests[str(request.get("name"))] = {str(each.get("name")) for _, each in inner}
        yield from _request(request, place)
    constraints = devices.get("constraints")
    yield from _too_many(constraints or (), _MOST, f"{field}.constraints")
    for place, constraint in _entries(constraints, _MOST, f"{field}.constraints"):
        yield from _references(constraint.get("requests"), f"{place}.requests", requests)
        given = [key for key in ("matchAttribute", "distinctAttribute") if constraint.get(key)]
        if len(given) != 1:
            both, accepted = " and ".join(given), "exactly one of matchAttribute, distinctAttribute"
            yield from _error(place, f"has {both}: {accepted} is accepted" if given else f"{accepted} is required")
        for key in given:
            yield from _qualified(constraint[key], f"{place}.{key}", has_domain=True)
    yield from _configs(devices.get("config"), f"{field}.config", requests)


def _request(request: Json, place: str) -> Iterator[Finding]:
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable")
    if bool(alternatives) is (exactly is not None):
        accepted = "exactly one of exactly, firstAvailable"
        both = f"has exactly and firstAvailable: {accepted} is accepted"
        yield from _error(place, both if alternatives else f"{accepted} is required")
    if isinstance(exactly, dict):
        yield from _exact(exactly, f"{place}.exactly")
    yield from _named(alternatives, MAX_ALTERNATIVES, f"{place}.firstAvailable")
    for at, each in _entries(alternatives, MAX_ALTERNATIVES, f"{place}.firstAvailable"):
        yield from _exact(each, at)


def _exact(request: Json, place: str) -> Iterator[Finding]:
    name, mode, count = request.get("deviceClassName"), request.get("allocationMode"), request.get("count")
    if not name:
        yield from _error(f"{place}.deviceClassName", "is required: the name of a DeviceClass")
    elif not is_subdomain(name):
        yield from _error(f"{place}.deviceClassName", f"{shown(name)} is not a valid name: use {SUBDOMAIN_FORM}")
    if mode not in (None, "", EXACT_COUNT, ALL):
        yield from _error(f"{place}.allocationMode", f"expected one of {EXACT_COUNT}, {ALL}, got {shown(mode)}")
    elif count and mode == ALL:
        yield from _error(f"{place}.count", f"is accepted only with allocationMode: {EXACT_COUNT}")
    elif count is not None and count < 1 and mode != ALL:
        yield from _error(f"{place}.count", f"must be at least 1, got {count}")
    yield from _selectors(request.get("selectors"), f"{place}.selectors")
    yield from _too_many(request.get("tolerations") or (), _MOST_TOLERATIONS, f"{place}.tolerations")
    for at, each in _entries(request.get("tolerations"), _MOST_TOLERATIONS, f"{place}.tolerations"):
        yield from _toleration(each, at)


def _toleration(toleration: Json, place: str) -> Iterator[Finding]:
    key, operator, value = (toleration.get(name) or "" for name in ("key", "operator", "value"))
    if key:
        yield from check_qualified(key, f"{place}.key")
    if operator == "Exists" and value:
        yield from _error(f"{place}.value", "must be omitted with operator Exists")
    else:
        yield from check_label_value(value, f"{place}.value")
