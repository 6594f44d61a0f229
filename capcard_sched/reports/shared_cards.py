"""The pods of a simulated cluster, and shared GPU cards with the pods on them, from annotations of nodes and pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from capcard_sched.controllers.objects import JsonObject, annotations_of, has_ended, key_of, meta, spec, status
from capcard_sched.model.annotations import NODE_VGPU_HANDSHAKE, NODE_VGPU_REGISTER, VGPU_IDS
from capcard_sched.model.card_registration import decode_registration, handshake_state, ignores_health
from capcard_sched.model.pod_devices import decode_devices
from capcard_sched.model.quantity import QuantityError, amounts
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from capcard_sched.model.card_registration import RegisteredCard
    from capcard_sched.model.pod_devices import Device

_ORIGIN: Final = "Origin reason is "


def moment_of(stamp: str | None) -> float | None:
    """Unix seconds of a timestamp; None for none or a malformed one."""
    return parse_time(stamp) or None


def amounts_of(raw: Any) -> dict[str, int]:
    """Base units by resource; empty when any quantity is malformed."""
    try:
        return amounts(raw)
    except QuantityError:
        return {}


def is_charged(pod: JsonObject) -> bool:
    """Charged to its queue: bound and not finished, whatever its grace period."""
    return bool(spec(pod).get("nodeName")) and not has_ended(pod)


def scheduled_at(pod: JsonObject) -> float | None:
    """When the pod was bound; None for an unbound or terminating pod."""
    if not spec(pod).get("nodeName") or meta(pod).get("deletionTimestamp"):
        return None
    for condition in status(pod).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return moment_of(condition.get("lastTransitionTime"))
    return moment_of(meta(pod).get("creationTimestamp"))


def is_pending(pod: JsonObject) -> bool:
    """Not bound and not finished."""
    return not spec(pod).get("nodeName") and status(pod).get("phase") in (None, "Pending")


def pod_reason(pod: JsonObject) -> str:
    """Why a pending pod is not scheduled; "" for other pods."""
    if not is_pending(pod):
        return ""
    for condition in status(pod).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            if condition.get("reason") == "Schedulable":
                return ""
            return origin_of(condition.get("message") or condition.get("reason") or "")
    return ""


def origin_of(message: str) -> str:
    """The cause inside a job's message: the part after `Origin reason is <task>: `."""
    _, found, cause = message.partition(_ORIGIN)
    return cause.partition(": ")[2] if found else message


#: The number of vGPUs that a kubelet offers.
_NUMBER: Final = "volcano.sh/vgpu-number"


class CardTenant(NamedTuple):
    """The shares of one pod on one card."""

    #: `namespace/name`.
    pod: str
    shares: int
    #: Units asked for.
    memory: int
    #: Percent.
    cores: int
    #: MIG slices, `group2-3`.
    slices: tuple[str, ...]


class SharedCardRow(NamedTuple):
    """One card of one node."""

    node: str
    #: Position in the registration of the node.
    gpu: int
    card: RegisteredCard
    tenants: tuple[CardTenant, ...]
    #: False: unhealthy, of a device plugin that is gone, or of a node without vGPUs in its allocatable resources. The
    #: scheduler places no pod on it.
    is_available: bool

    @property
    def shares(self) -> int:
        """Shares in use."""
        return sum(tenant.shares for tenant in self.tenants)

    @property
    def memory(self) -> int:
        """Units in use."""
        return sum(tenant.memory for tenant in self.tenants)

    @property
    def cores(self) -> int:
        """Percent in use."""
        return sum(tenant.cores for tenant in self.tenants)


def shared_cards(
    nodes: Iterable[JsonObject], pods: Iterable[JsonObject], shares: Collection[str] = ()
) -> tuple[SharedCardRow, ...]:
    """Every registered card, by node and index; tenants by pod.

    `shares`: resources of shared devices, those of the device plugin when empty.
    """
    offering = shares if shares and _NUMBER not in shares else (_NUMBER,)
    held: dict[tuple[str, str], dict[str, list[Device]]] = {}
    for pod in pods:
        node = spec(pod).get("nodeName")
        text = annotations_of(pod).get(VGPU_IDS)
        if not node or not text or not is_charged(pod):
            continue
        name = "/".join(key_of(pod))
        for devices in decode_devices(text).containers:
            for device in devices:
                held.setdefault((node, device.uuid), {}).setdefault(name, []).append(device)
    rows = []
    for node in sorted(nodes, key=key_of):
        name = meta(node)["name"]
        annotations = annotations_of(node)
        text = annotations.get(NODE_VGPU_REGISTER)
        cards = decode_registration(text).cards if text else ()
        allocatable = status(node).get("allocatable") or {}
        offered = sum(str(allocatable.get(resource, "0")) != "0" for resource in offering)
        any_health = ignores_health(cards, offered)
        is_gone = not offered or handshake_state(annotations.get(NODE_VGPU_HANDSHAKE, ""), 0.0) == "deleted"
        for index, card in enumerate(cards):
            found = sorted(held.get((name, card.uuid), {}).items())
            tenants = tuple(_tenant(pod, devices) for pod, devices in found)
            rows.append(SharedCardRow(name, index, card, tenants, (card.healthy or any_health) and not is_gone))
    return tuple(rows)


def _tenant(pod: str, devices: list[Device]) -> CardTenant:
    return CardTenant(
        pod,
        len(devices),
        sum(device.memory for device in devices),
        sum(device.cores for device in devices),
        tuple(f"{device.group}-{device.position}" for device in devices if device.group),
    )
