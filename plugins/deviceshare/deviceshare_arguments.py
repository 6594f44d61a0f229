"""The arguments of deviceshare, and which of them exclude each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from capcard_sched.framework.api.arguments import ArgumentReader

_PREFIX: Final = "deviceshare."
EXCLUSIVE_RULES: Final = f"{_PREFIX}GPUExclusiveRules"
_POLICIES: Final = ("binpack", "spread")
_Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]


class DeviceShareArguments(msgspec.Struct, frozen=True):
    """Arguments as users write them."""

    #: Share the cards that the volcano-vgpu-device-plugin registers.
    vgpu: bool = msgspec.field(name="deviceshare.VGPUEnable", default=False)
    #: Share cards by memory alone (deprecated).
    gpu_sharing: bool = msgspec.field(name="deviceshare.GPUSharingEnable", default=False)
    #: Give whole cards by number (deprecated).
    gpu_number: bool = msgspec.field(name="deviceshare.GPUNumberEnable", default=False)
    #: Bind one vGPU pod after the other on each node, under an annotation that locks it.
    node_lock: bool = msgspec.field(name="deviceshare.NodeLockEnable", default=False)
    #: `binpack` fills cards up, `spread` prefers idle ones; anything else neither.
    policy: str = msgspec.field(name="deviceshare.SchedulePolicy", default="")
    #: Times the score of a node, which is up to 100 per card taken; 0 scores nothing.
    weight: int = msgspec.field(name="deviceshare.ScheduleWeight", default=0)
    #: Name of the ConfigMap of the device plugin.
    config_map: _Name = msgspec.field(name="deviceshare.KnownGeometriesCMName", default="volcano-vgpu-device-config")
    #: Namespace of that ConfigMap.
    config_namespace: _Name = msgspec.field(name="deviceshare.KnownGeometriesCMNamespace", default="kube-system")
    #: Labels that select pods: of the pods that one rule selects, no two share a vGPU card.
    exclusive_rules: tuple[dict[str, str], ...] = msgspec.field(name=EXCLUSIVE_RULES, default=())
    #: Give slices of Ascend 310P.
    ascend_310p: bool = msgspec.field(name="deviceshare.ASCEND310PVNPUEnable", default=False)


def check_arguments(found: DeviceShareArguments, problems: ArgumentReader) -> None:
    """Reject switches that exclude each other; warn of a policy that does less than it seems to."""
    if found.gpu_sharing and found.gpu_number:
        problems.error(f"{_PREFIX}GPUNumberEnable", "can not define true in both gpu sharing and gpu number")
    if found.vgpu and (found.gpu_sharing or found.gpu_number):
        problems.error(f"{_PREFIX}VGPUEnable", "gpu-share and vgpu can't be used together")
    for number, rule in enumerate(found.exclusive_rules):
        if not rule:
            message = "selects no pod: it names no label"
            problems.warning(f"{EXCLUSIVE_RULES}[{number}]", message, accepted="a map of labels")
    if found.exclusive_rules and not found.vgpu:
        problems.warning(EXCLUSIVE_RULES, f"has no effect without {_PREFIX}VGPUEnable: true")
    if found.policy and found.policy not in _POLICIES:
        problems.warning(
            f"{_PREFIX}SchedulePolicy",
            f'"{found.policy}" is no policy: cards are taken in the order of their index',
            accepted=", ".join(_POLICIES),
        )
    elif found.policy and found.weight <= 0:
        problems.warning(
            f"{_PREFIX}SchedulePolicy",
            f"orders the cards of a node only: without {_PREFIX}ScheduleWeight it does not rank nodes",
        )
