"""The rows of `device_objects.yaml` as objects."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

Json = dict[str, Any]
_API: Final = "resource.k8s.io/v1"
_REQUESTS: Final = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}
_POOL: Final = {"name": "p", "generation": 1, "resourceSliceCount": 1}
#: The object of a kind before a value is replaced.
_BASES: Final[dict[str, tuple[str, str, Json]]] = {
    "slice": (_API, "ResourceSlice", {"driver": "d.example.com", "nodeName": "n1", "pool": _POOL}),
    "class": (_API, "DeviceClass", {}),
    "claim": (_API, "ResourceClaim", _REQUESTS),
    "template": (_API, "ResourceClaimTemplate", {"spec": _REQUESTS}),
    "rule": ("resource.k8s.io/v1beta2", "DeviceTaintRule", {"taint": {"key": "k", "effect": "NoExecute"}}),
    "pod": ("v1", "Pod", {"containers": [{"name": "main", "image": "x"}]}),
}
_MANY: Final = [{"cel": {"expression": "true"}}] * 33


class Row(NamedTuple):
    """One object, and the error about it; no error of a good one."""

    id: str
    object: Json
    field: str = ""
    text: str = ""
    #: An API server stores the object.
    served: bool = False


def _object(of: str, path: str, value: Any) -> Json:
    version, kind, spec = _BASES[of]
    made: Json = {"apiVersion": version, "kind": kind, "metadata": {"name": "bad"}, "spec": copy.deepcopy(spec)}
    if kind not in ("ResourceSlice", "DeviceClass", "DeviceTaintRule"):
        made["metadata"]["namespace"] = "default"
    *parents, last = path.split(".")
    place: Any = made
    for each in parents:
        place = place[each]
    if value is None:
        place.pop(last, None)
    else:
        place[last] = value
    return made


def _filled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each) for key, each in value.items()}
    return [_filled(each) for each in value] if isinstance(value, list) else _MANY if value == "MANY" else value


def _repeated(value: Json, times: int) -> list[Json]:
    return [
        {key: f"{text[:-1]}{number}" if str(text).endswith("#") else text for key, text in value.items()}
        for number in range(times)
    ]


def _rows() -> tuple[list[Row], list[Row]]:
    found = yaml.safe_load(Path(__file__).with_name("device_objects.yaml").read_text("utf-8"))
    good = [
        Row(f"{of}: {path}: {name}", _object(of, path, value))
        for of, paths in found.pop("good").items()
        for path, cases in paths.items()
        for name, value in cases.items()
    ]
    bad = []
    for of, paths in found.items():
        for path, cases in paths.items():
            for name, case in cases.items():
                value = _filled(case["value"])
                if "repeat" in case:
                    value = _repeated(value, case["repeat"])
                made = _object(of, path, value)
                row = Row(
                    f"{of}: {path}: {name}", made, case.get("field", path), case["text"], case.get("served", False)
                )
                bad.append(row)
    return bad, good


BAD, GOOD = _rows()
