"""ConfigMaps that plugins read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capcard_sched.model import deltas

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capcard_sched.state.changes import Changes

_EMPTY: Mapping[str, str] = {}


class ConfigMapTable:
    """Applies ConfigMap deltas. Plugins read the contents; the backend delivers the ConfigMaps that they name."""

    def __init__(self, changes: Changes) -> None:
        #: Data by `namespace/name`.
        self.data: dict[str, Mapping[str, str]] = {}
        self._changes = changes
        self.handlers: dict[type, Callable[[Any], None]] = {
            deltas.ConfigMapChanged: self._put,
            deltas.ConfigMapGone: self._drop,
        }

    def _put(self, delta: deltas.ConfigMapChanged) -> None:
        meta = delta.config_map.metadata
        key, data = f"{meta.namespace or 'default'}/{meta.name}", delta.config_map.data or _EMPTY
        if self.data.get(key) != data:
            self.data[key] = data
            self._changes.config_maps.add(key)

    def _drop(self, delta: deltas.ConfigMapGone) -> None:
        key = f"{delta.namespace}/{delta.name}"
        if self.data.pop(key, None) is not None:
            self._changes.config_maps.add(key)
