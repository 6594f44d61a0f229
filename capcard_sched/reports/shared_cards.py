"""The pods of a simulated cluster, and shared GPU cards with the pods on them, from annotations of nodes and pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.controllers.objects import JsonObject, annotations_of, has_ended, key_of, meta, spec, status
from capcard_sched.model.annotations import NODE_VGPU_HANDSHAKE, NODE_VGPU_REGISTER, VGPU_IDS
from capcard_sched.model.card_registration import decode_registration, handshake_state, ignores_health
from capcard_sched.model.pod_devices import decode_devices
from capcard_sched.model.quoting import plural
from capcard_sched.reports.tables import titled

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from capcard_sched.model.card_registration import RegisteredCard
    from capcard_sched.model.pod_devices import Device


def is_charged(pod: JsonObject) -> bool:
    """Whether the pod counts against the quota of its queue: bound and not finished, whatever its grace period."""
    return bool(spec(pod).get("nodeName")) and not has_ended(pod)


def is_pending(pod: JsonObject) -> bool:
    return not spec(pod).get("nodeName") and status(pod).get("phase") in (None, "Pending")


#: The maximum listed.
_MOST_CARDS: Final = 64
_HEADERS: Final = ("NODE", "GPU", "SHARES", "MEMORY", "CORES", "", "PODS")
#: Characters of a bar, and its shades.
_CELLS: Final = 20
_SHADES: Final = "█▓▒"
#: The number of vGPUs that a kubelet offers.
_NUMBER: Final = "volcano.sh/vgpu-number"


class CardTenant(NamedTuple):
    """The shares of one pod on one card."""

    #: `namespace/name`.
    pod: str
    shares: int
    #: Requested units.
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


def shared_cards_table(rows: Sequence[SharedCardRow]) -> list[str]:
    """One line per card: a bar of its memory with one shade per tenant, and the tenants. Lines of a table; [] for none.

    Of many cards the fullest are shown.
    """
    if not rows:
        return []
    hidden = len(rows) - _MOST_CARDS
    if hidden > 0:
        rows = sorted(rows, key=lambda row: -row.memory / row.card.memory)[:_MOST_CARDS]
    lines: list[tuple[str, ...]] = []
    last = ""
    for row in rows:
        pods = ", ".join([*map(_tenant_text, row.tenants), *["unavailable"] * (not row.is_available)])
        lines.append(
            (
                row.node if row.node != last else "",
                str(row.gpu),
                f"{row.shares}/{row.card.slots}",
                f"{row.memory}/{row.card.memory}",
                f"{row.cores}%",
                _bar(row),
                pods,
            )
        )
        last = row.node
    found = titled("Shared cards", _HEADERS, lines, {"NODE", "GPU", "", "PODS"})
    return [*found, f"... and {plural(hidden, 'more shared card')}"] if hidden > 0 else found


def _bar(row: SharedCardRow) -> str:
    bar, used = "", 0
    for number, tenant in enumerate(row.tenants):
        before, used = used, used + tenant.memory
        cells = round(used / row.card.memory * _CELLS) - round(before / row.card.memory * _CELLS)
        bar += _SHADES[number % len(_SHADES)] * max(0, cells)
    return bar.ljust(_CELLS, "░")


def _tenant_text(tenant: CardTenant) -> str:
    slices = f" [{' '.join(tenant.slices)}]" if tenant.slices else ""
    return f"{tenant.pod.partition('/')[2]} {tenant.memory}{slices}"
