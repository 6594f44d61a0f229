"""The ConfigMap of the device plugin, as of the present session: the last valid contents stay in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.model.annotations import DEVICE_CONFIG_KEY
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.reasons import DEVICE_CONFIG
from capcard_sched.model.yaml_reader import YamlError, read_document
from capcard_sched.plugins.deviceshare.device_config import (
    DEFAULT_CONFIG,
    DeviceConfig,
    DeviceConfigError,
    device_config,
    unknown_keys,
)

if TYPE_CHECKING:
    from capcard_sched.framework.session.session import Session


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
        data = session.config_maps.get(f"{self._ref.namespace}/{self._ref.name}")
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
            session.notice_about(self._ref, DEVICE_CONFIG, message)
        return self.config != before
