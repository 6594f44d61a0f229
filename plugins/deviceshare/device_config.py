"""The settings that a device plugin keeps in a ConfigMap: resource names, memory factor, MIG geometries.

The last valid contents stay in force.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from capcard_sched.model.annotations import DEVICE_CONFIG_KEY
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.reasons import DEVICE_CONFIG
from capcard_sched.model.yaml_reader import YamlError, read_document
from capcard_sched.plugins.deviceshare.geometry import DEFAULT_GEOMETRIES, Geometry, SliceGroup, SliceKind
from capcard_sched.plugins.deviceshare.vgpu_request import DEFAULT_RESOURCES, VgpuResources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.framework.session.session import Session

_SECTION: Final = "nvidia"
_FACTOR: Final = "gpuMemoryFactor"
_GEOMETRIES: Final = "knownMigGeometries"
_MOST: Final = 1 << 31
#: Of one group: a position has four digits in the annotation of a pod.
_MOST_SLICES: Final = 9999
_GROUP: Final = re.compile(r"[\w.-]{1,63}", re.ASCII)
#: Extended resources: others count on their own.
_RESOURCE: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?", re.ASCII)

#: Keys of resource names to the fields of `VgpuResources`.
_NAMES: Final = {
    "resourceCountName": "number",
    "resourceMemoryName": "memory",
    "resourceMemoryPercentageName": "percentage",
    "resourceCoreName": "cores",
}
#: Keys that only the device plugin reads.
_OTHERS: Final = frozenset(
    {
        "resourcePriorityName",
        "overwriteEnv",
        "defaultMemory",
        "defaultCores",
        "defaultGPUNum",
        "deviceSplitCount",
        "deviceMemoryScaling",
        "deviceCoreScaling",
        "disableCoreLimit",
    }
)


class DeviceConfig(msgspec.Struct, frozen=True):
    """What the scheduler reads of the ConfigMap; defaults where it is silent."""

    resources: VgpuResources = DEFAULT_RESOURCES
    #: MiB of a memory unit.
    factor: int = 1
    geometries: tuple[Geometry, ...] = DEFAULT_GEOMETRIES


DEFAULT_CONFIG: Final = DeviceConfig()


class DeviceConfigError(ValueError):
    """A ConfigMap that cannot be used; the message names path, value and accepted form, all there is."""


class _Fault(NamedTuple):
    path: str
    text: str


class _Reader:
    """Collects what is wrong while values are taken out of a document."""

    def __init__(self) -> None:
        self.faults: list[_Fault] = []

    def fault(self, path: str, value: object, accepted: str) -> None:
        text = repr(value)
        self.faults.append(_Fault(path, f"expected {accepted}, got {text if len(text) <= 64 else f'{text[:64]}...'}"))

    def text(self, value: object, path: str) -> str:
        if not isinstance(value, str) or not value.strip():
            self.fault(path, value, "a text that is not empty")
            return ""
        return value.strip()

    def resource(self, value: object, path: str) -> str:
        name = self.text(value, path)
        if name and _RESOURCE.fullmatch(name) is None:
            self.fault(path, value, "a name with a domain, such as volcano.sh/vgpu-number")
        return name

    def integer(self, value: object, path: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _MOST:
            self.fault(path, value, "a positive integer")
            return 1
        return value

    def mapping(self, value: object, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fault(path, value, "a map")
            return {}
        return {str(key): each for key, each in value.items()}

    def entries(self, value: object, path: str) -> Iterator[tuple[str, object]]:
        """The entries of a list, each with its path."""
        if not isinstance(value, list):
            self.fault(path, value, "a list")
            return
        for index, each in enumerate(value):
            yield f"{path}[{index}]", each


def device_config(document: object) -> DeviceConfig:
    """The settings in a parsed document. Raises DeviceConfigError with everything that is wrong with it.

    Absent and null keys have their defaults, an empty list of geometries too.
    """
    reader = _Reader()
    root = reader.mapping({} if document is None else document, "document")
    section = root.get(_SECTION)
    nvidia = reader.mapping({} if section is None else section, _SECTION)
    names = {
        field: reader.resource(nvidia[key], f"{_SECTION}.{key}")
        for key, field in _NAMES.items()
        if nvidia.get(key) not in (None, "")
    }
    factor = nvidia.get(_FACTOR)
    found = DeviceConfig(
        VgpuResources(**names),
        1 if factor is None else reader.integer(factor, f"{_SECTION}.{_FACTOR}"),
        tuple(_geometries(reader, nvidia.get(_GEOMETRIES))) or DEFAULT_GEOMETRIES,
    )
    resources = msgspec.structs.astuple(found.resources)
    if len(set(resources)) != len(resources):
        reader.fault(_SECTION, ", ".join(resources), "four different resource names")
    if reader.faults:
        raise DeviceConfigError("; ".join(f"{path}: {text}" for path, text in reader.faults))
    return found


def unknown_keys(document: object) -> list[str]:
    """Keys of the section that neither the scheduler nor a device plugin reads."""
    section = document.get(_SECTION) if isinstance(document, dict) else None
    if not isinstance(section, dict):
        return []
    known = {*_NAMES, *_OTHERS, _FACTOR, _GEOMETRIES}
    return sorted(str(key) for key in section if key not in known)


def _geometries(reader: _Reader, value: object) -> Iterator[Geometry]:
    if value is None:
        return
    for path, each in reader.entries(value, f"{_SECTION}.{_GEOMETRIES}"):
        entry = reader.mapping(each, path)
        models = [reader.text(model, at) for at, model in reader.entries(entry.get("models"), f"{path}.models")]
        groups = [_group(reader, group, at) for at, group in reader.entries(
            entry.get("allowedGeometries"), f"{path}.allowedGeometries"
        )]  # fmt: skip
        names = [group.name for group in groups]
        if len(set(names)) != len(names):
            reader.fault(f"{path}.allowedGeometries", ", ".join(names), "groups of different names")
        yield Geometry(tuple(models), tuple(groups))


def _group(reader: _Reader, value: object, path: str) -> SliceGroup:
    group = reader.mapping(value, path)
    kinds = []
    for at, each in reader.entries(group.get("geometries"), f"{path}.geometries"):
        kind = reader.mapping(each, at)
        kinds.append(
            SliceKind(
                reader.text(kind.get("name"), f"{at}.name"),
                reader.integer(kind.get("memory"), f"{at}.memory"),
                reader.integer(kind.get("count"), f"{at}.count"),
            )
        )
    name = reader.text(group.get("group"), f"{path}.group")
    if name and _GROUP.fullmatch(name) is None:
        reader.fault(f"{path}.group", name, "letters, digits, dots and dashes: pods name it in an annotation")
    if sum(kind.count for kind in kinds) > _MOST_SLICES:
        reader.fault(f"{path}.geometries", sum(kind.count for kind in kinds), f"at most {_MOST_SLICES} slices")
    return SliceGroup(name, tuple(kinds))


class DeviceConfigText(NamedTuple):
    """The settings in contents of the ConfigMap."""

    #: The defaults when the contents are invalid.
    config: DeviceConfig
    #: Why they are invalid, "" when they are valid.
    problem: str = ""
    #: Keys that neither the scheduler nor a device plugin reads.
    unknown: tuple[str, ...] = ()


def read_device_config(text: str) -> DeviceConfigText:
    """The settings in these contents."""
    try:
        document = read_document(text).value
        return DeviceConfigText(device_config(document), unknown=tuple(unknown_keys(document)))
    except (YamlError, DeviceConfigError) as error:
        return DeviceConfigText(DEFAULT_CONFIG, str(error))


class DeviceSettings:
    """Reads the ConfigMap when it changes."""

    def __init__(self, namespace: str, name: str) -> None:
        self._ref = ObjectRef("ConfigMap", namespace, name)
        #: Contents that were read last, None for a ConfigMap that is missing.
        self._text: str | None = None
        self.config = DEFAULT_CONFIG
        #: Why the present contents are not in force, "" when they are.
        self.problem = ""

    def changed(self, session: Session) -> bool:
        """Take up the ConfigMap; whether other settings are in force now. Emits an event about invalid contents."""
        data = session.snapshot.config_maps.get(f"{self._ref.namespace}/{self._ref.name}")
        text = None if data is None else data.get(DEVICE_CONFIG_KEY)
        if text == self._text:
            return False
        self._text = text
        before = self.config
        found = DeviceConfigText(DEFAULT_CONFIG) if text is None else read_device_config(text)
        self.problem = found.problem
        if not found.problem:
            self.config = found.config
        else:
            message = DEVICE_CONFIG.render(key=DEVICE_CONFIG_KEY, detail=self.problem)
            session.results.notice_about(self._ref, DEVICE_CONFIG, message)
        return self.config != before
