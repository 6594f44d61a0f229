"""Limits of a queue that no plugin of the scheduler-conf enforces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.model.annotations import CARD_QUOTA
from capcard_sched.model.resources import VGPU_RESOURCES
from capcard_sched.validation.checks import Finding, annotation_field

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet

#: The plugin of card quotas; plugins that enforce all resources of `capability`, `deserved` and `guarantee`.
_CARD_PLUGIN: Final = "capacity-card"
_RESOURCE_PLUGINS: Final = frozenset({"capacity", "proportion"})
#: Field of a Queue's spec to its path.
_PATHS: Final = {"capability": "spec.capability", "deserved": "spec.deserved", "guarantee": "spec.guarantee.resource"}


def unenforced_limits(
    limits: Mapping[str, Iterable[str]],
    annotations: Mapping[str, str],
    plugins: AbstractSet[str],
    shares: Collection[str] = (),
) -> list[Finding]:
    """Warnings about limits of one queue without effect.

    `limits`: `capability`, `deserved` and `guarantee` to their resources; `plugins`: names in the scheduler-conf;
    `shares`: resources of shared devices, VGPU_RESOURCES when empty.
    """
    found = []
    if not plugins & _RESOURCE_PLUGINS:
        for field, path in _PATHS.items():
            for resource in sorted(limits.get(field) or ()):
                share = resource in (shares or VGPU_RESOURCES)
                if share and field == "capability" and _CARD_PLUGIN in plugins:
                    continue
                if "/" in resource:  # an extended resource: a device, or shares of cards under any name
                    message = f"not enforced: no plugin of the scheduler-conf limits {resource} by {field}"
                    accepted = f"the annotation {CARD_QUOTA}, or the plugin capacity or proportion"
                    if share:
                        accepted = (
                            f"the field capability with the plugin {_CARD_PLUGIN}, or the plugin capacity or proportion"
                        )
                    found.append(Finding("warning", f'{path}["{resource}"]', message, accepted))
    if CARD_QUOTA in annotations and _CARD_PLUGIN not in plugins:
        message = f"not enforced: the scheduler-conf has no plugin {_CARD_PLUGIN}"
        found.append(Finding("warning", annotation_field(CARD_QUOTA), message, f"the plugin {_CARD_PLUGIN}"))
    return found
