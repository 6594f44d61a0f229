"""Compares specs by meaning: an update by a typed client writes the same object in other words.

Such a client drops fields it does not set, writes empty structs and nulls, and writes quantities and durations in their
canonical form. A default equals an absent field. The order of keys is irrelevant, that of lists is not.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from capcard_sched.model.job_plugins import needed_plugins
from capcard_sched.model.quantity import QuantityError, parse_quantity
from capcard_sched.model.timestamps import DurationError, parse_duration
from capcard_sched.validation.budget import checkpoint
from capcard_sched.validation.inventory import as_map, as_maps
from capcard_sched.validation.job_structure import task_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.validation.inventory import Json

#: Maps of quantities; a key counts whatever its value.
_QUANTITY_MAPS: Final = frozenset(
    {"limits", "requests", "capacity", "overhead", "capability", "deserved", "resource", "minResources"}
)
_QUANTITIES: Final = frozenset({"sizeLimit", "divisor", "storage"})
_DURATIONS: Final = frozenset({"timeout", "runningEstimate"})
#: Maps of free keys; a key counts whatever its value.
_FREE_MAPS: Final = frozenset(
    {"labels", "annotations", "nodeSelector", "matchLabels", "plugins", "volumeAttributes", "options", "minTaskMember"}
)
#: Fields whose empty value differs from none: a selector of everything, and no storage class.
_EMPTY_COUNTS: Final = frozenset({"labelSelector", "namespaceSelector", "storageClassName"})
#: Fields whose zero or false differs from none.
_ZERO_COUNTS: Final = frozenset(
    {
        *("replicas", "minAvailable", "minSuccess", "ttlSecondsAfterFinished", "exitCode", "priority"),
        *("terminationGracePeriodSeconds", "activeDeadlineSeconds", "tolerationSeconds", "defaultMode", "mode"),
        *("automountServiceAccountToken", "enableServiceLinks", "hostUsers"),
        *("runAsUser", "runAsGroup", "runAsNonRoot", "fsGroup", "allowPrivilegeEscalation", "reclaimable"),
    }
)
#: Defaults of fields that mean the same wherever they are.
_DEFAULTS: Final = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "protocol": "TCP",
    "scheme": "HTTP",
    "periodSeconds": 10,
    "timeoutSeconds": 1,
    "successThreshold": 1,
    "failureThreshold": 3,
    "operator": "Equal",
    "enableServiceLinks": True,
    "hostUsers": True,
    "defaultMode": 0o644,
    "volumeMode": "Filesystem",
    "iteration": "all",
    "topologyPolicy": "none",
    "maxRetry": 3,
    "nodeAffinityPolicy": "Honor",
    "nodeTaintsPolicy": "Ignore",
    "procMount": "Default",
}
#: Defaults of a pod's spec.
_POD_DEFAULTS: Final = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30}
_CONTAINERS: Final = frozenset({"containers", "initContainers"})


def changed_fields(new: Any, old: Any, path: str) -> list[str]:
    """Paths below `path` where two canonical forms differ, in order."""
    return list(_differences(new, old, path))


def canonical(value: Any, key: str = "") -> Any:
    """A form that values of the field `key` share if they mean the same."""
    if isinstance(value, dict):
        return _canonical_map(value, key)
    if isinstance(value, list):
        return [canonical(entry, f"{key}[]") for entry in value]
    if key in _QUANTITIES:
        return _quantity(value)
    if key in _DURATIONS:
        return _duration(value)
    return value


def canonical_job(spec: Json, scheduler_name: str) -> Json:
    """The spec of a vcjob without the defaults of admission; `scheduler_name` for a Job that names none."""
    named = spec.get("schedulerName") or scheduler_name
    found = {**spec, "queue": spec.get("queue") or "default", "schedulerName": named}
    plugins = spec.get("plugins")
    if isinstance(plugins, dict):
        found["plugins"] = {**{name: [] for name in needed_plugins(plugins)}, **plugins}
    found["tasks"] = [
        {**_without_scheduler(task, str(named)), "name": task_name(task, index)}
        for index, task in enumerate(as_maps(spec.get("tasks")))
    ]
    result: Json = canonical(found)
    return result


def _without_scheduler(task: Json, scheduler_name: str) -> Json:
    """A task whose template does not repeat the scheduler of its Job."""
    template = as_map(task.get("template"))
    pod = as_map(template.get("spec"))
    if pod.get("schedulerName") != scheduler_name:
        return task
    rest = {name: value for name, value in pod.items() if name != "schedulerName"}
    return {**task, "template": {**template, "spec": rest}}


def _canonical_map(value: Json, key: str) -> Any:
    checkpoint()
    if key in _QUANTITY_MAPS and not any(isinstance(entry, dict) for entry in value.values()):
        return {name: _quantity(entry) for name, entry in value.items()}
    if key in _FREE_MAPS:
        return {name: _or_empty(canonical(entry)) for name, entry in value.items()}
    found = {}
    for name, entry in _without_defaults(value, key).items():
        result = canonical(entry, name)
        if not (_is_absent(result, name) or (name in _DEFAULTS and _DEFAULTS[name] == result)):
            found[name] = result
    return found


def _without_defaults(value: Json, key: str) -> Json:
    """A map without the defaults that depend on other fields of it."""
    if key == "spec" and "containers" in value:
        policy = "ClusterFirstWithHostNet" if value.get("hostNetwork") is True else "ClusterFirst"
        return _less(value, {**_POD_DEFAULTS, "dnsPolicy": policy})
    if key.removesuffix("[]") in _CONTAINERS:
        image = str(value.get("image") or "")
        tag = image.rpartition("/")[2].partition("@")
        is_latest = not tag[1] and tag[0].partition(":")[2] in {"", "latest"}
        found = _less(value, {"imagePullPolicy": "Always" if is_latest else "IfNotPresent"})
        resources = as_map(value.get("resources"))
        limits, requests = as_map(resources.get("limits")), as_map(resources.get("requests"))
        if limits:
            found["resources"] = {**resources, "requests": {**limits, **requests}}
        return found
    if key == "networkTopology" and len(value) > 1:
        return _less(value, {"mode": "hard"})
    if key == "httpGet":
        return _less(value, {"path": "/"})
    if key == "fieldRef":
        return _less(value, {"apiVersion": "v1"})
    if key == "resourceFieldRef" and _quantity(value.get("divisor")) in {Fraction(0), Fraction(1)}:
        return {name: entry for name, entry in value.items() if name != "divisor"}
    return value


def _less(value: Json, defaults: Json) -> Json:
    return {name: entry for name, entry in value.items() if name not in defaults or entry != defaults[name]}


def _is_absent(value: Any, name: str) -> bool:
    if value is None:
        return True
    if isinstance(value, dict | list | str):
        return not value and name not in _EMPTY_COUNTS
    return not value and not isinstance(value, Fraction) and name not in _ZERO_COUNTS


def _or_empty(value: Any) -> Any:
    """`""` for None and for every empty value."""
    return "" if value is None or (not value and isinstance(value, dict | list)) else value


def _quantity(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    try:
        return parse_quantity(value)
    except QuantityError:
        return value


def _duration(value: Any) -> Any:
    try:
        seconds = parse_duration(value) if isinstance(value, str) else math.nan
    except DurationError:
        return value
    return value if math.isnan(seconds) else Fraction(seconds)


def _differences(new: Any, old: Any, path: str) -> Iterator[str]:
    if isinstance(new, dict) and isinstance(old, dict):
        for key in sorted(new.keys() | old.keys(), key=str):
            yield from _differences(new.get(key), old.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        for index, (mine, theirs) in enumerate(zip(new, old, strict=True)):
            yield from _differences(mine, theirs, f"{path}[{index}]")
    elif isinstance(new, bool) is not isinstance(old, bool) or new != old:
        yield path
