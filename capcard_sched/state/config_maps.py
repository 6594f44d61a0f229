"""ConfigMaps that plugins read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capcard_sched.model.objects import ConfigMapObject

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capcard_sched.model.deltas import ObjectGone
    from capcard_sched.state.changes import Changes

_EMPTY: Mapping[str, str] = {}


class ConfigMapTable:
    """Applies ConfigMap deltas. Plugins read the contents; the backend delivers the ConfigMaps that they name."""

    def __init__(self, changes: Changes) -> None:
        #: Data by `namespace/name`.
        self.data: dict[str, Mapping[str, str]] = {}
        self._changes = changes
        self.handlers: dict[type | str, Callable[[Any], None]] = {
            ConfigMapObject: self._put,
            "ConfigMap": self._drop,
        }

    def _put(self, obj: ConfigMapObject) -> None:
        meta = obj.metadata
        key, data = f"{meta.namespace or 'default'}/{meta.name}", obj.data or _EMPTY
        if self.data.get(key) != data:
            self.data[key] = data
            self._changes.config_maps.add(key)

    def _drop(self, gone: ObjectGone) -> None:
        key = f"{gone.namespace}/{gone.name}"
        if self.data.pop(key, None) is not None:
            self._changes.config_maps.add(key)
