"""Reads objects of `resource.k8s.io/v1beta1` and `v1beta2` as those of `v1`.

`v1beta1` has the fields of a request beside its name instead of in `exactly`, and those of a device in `basic`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from capcard_sched.model.kinds import RESOURCE_API
from capcard_sched.simulation.generated_names import object_places
from capcard_sched.simulation.manifests import is_list

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.simulation.manifests import ManifestDocument

V1BETA1: Final = "resource.k8s.io/v1beta1"
_FORMER: Final = frozenset({V1BETA1, "resource.k8s.io/v1beta2"})
_CLAIMS: Final = frozenset({"ResourceClaim", "ResourceClaimTemplate"})


def read_former_versions(documents: Iterable[ManifestDocument]) -> list[tuple[ManifestDocument, dict[str, Any]]]:
    """Converts the objects of documents in place. Returns the claims and templates that were of `v1beta1`.

    Malformed ones are left as they are: their fields are reported as unknown or missing.
    """
    found = []
    for document in documents:
        _name_items(document.value)
        for obj, _ in object_places(document.value):
            version, kind = obj.get("apiVersion"), obj.get("kind")
            if not isinstance(version, str) or version not in _FORMER:
                continue
            obj["apiVersion"] = RESOURCE_API
            if version == V1BETA1:
                _convert(obj, str(kind))
                if kind in _CLAIMS:
                    found.append((document, obj))
    return found


def _name_items(value: Any) -> None:
    """Gives the items of a typed list, such as ResourceClaimList, the version and kind that they need not repeat."""
    if not isinstance(value, dict) or not is_list(value) or value.get("apiVersion") not in _FORMER:
        return
    for item in _dicts(value.get("items")):
        item.setdefault("apiVersion", value["apiVersion"])
        item.setdefault("kind", str(value["kind"]).removesuffix("List"))


def _convert(obj: dict[str, Any], kind: str) -> None:
    spec = obj.get("spec")
    if kind == "ResourceClaimTemplate" and isinstance(spec, dict):
        spec = spec.get("spec")
    if not isinstance(spec, dict):
        return
    if kind == "ResourceSlice":
        for device in _dicts(spec.get("devices")):
            if isinstance(basic := device.pop("basic", None), dict):
                device.update(basic)
    elif kind in _CLAIMS and isinstance(devices := spec.get("devices"), dict):
        for request in _dicts(devices.get("requests")):
            exactly = {key: value for key, value in request.items() if key not in ("name", "firstAvailable")}
            if not exactly or "exactly" in request:  # an alias of YAML
                continue
            for key in exactly:
                del request[key]
            request["exactly"] = exactly


def _dicts(found: Any) -> list[dict[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
