"""What a pod asks of vGPU cards: the amounts of each container, and the cards it accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from capcard_sched.model import annotations as keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.model.task_class import ContainerAmounts

#: Thousandths: one unit of an extended resource.
_UNIT = 1000
#: Percent of a card.
_WHOLE = 100
#: Devices that any pod can name.
_MOST = 1 << 40


class VgpuResources(msgspec.Struct, frozen=True):
    """The names of the four resources of a container."""

    number: str = "volcano.sh/vgpu-number"
    memory: str = "volcano.sh/vgpu-memory"
    percentage: str = "volcano.sh/vgpu-memory-percentage"
    cores: str = "volcano.sh/vgpu-cores"


DEFAULT_RESOURCES: Final = VgpuResources()


class Share(NamedTuple):
    """What a container wants of each of its cards; requests are equal where these are."""

    #: Memory units; 0 when `percentage` decides.
    memory: int
    #: Of the card's memory, where `memory` is 0.
    percentage: int
    #: Percent of the card's compute; 100 wants the card alone.
    cores: int
    #: Lower-case parts of card types: one of the first must be contained when there are any, else none of the second.
    use_types: tuple[str, ...] = ()
    avoid_types: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether all the memory of a card is wanted."""
        return not self.memory and self.percentage == _WHOLE

    def memory_on(self, card_memory: int) -> int:
        """The requested units on a card with the given total."""
        return self.memory or card_memory * self.percentage // 100

    def accepts(self, type: str) -> bool:
        """Whether a card of this type will do."""
        if "NVIDIA" not in type:
            return False
        type = type.lower()
        if self.use_types:
            return any(part in type for part in self.use_types)
        return not any(part in type for part in self.avoid_types)


class ContainerRequest(NamedTuple):
    """Equal shares of a number of different cards."""

    number: int
    share: Share


class VgpuRequest(msgspec.Struct, frozen=True):
    """What all pods of one class ask for."""

    #: By container of the pod; None for one that asks for nothing.
    containers: tuple[ContainerRequest | None, ...]
    #: Sharing mode of the cards, "" for any.
    mode: str = ""
    #: Only these cards when there are any, and never those.
    use_uuids: frozenset[str] = frozenset()
    avoid_uuids: frozenset[str] = frozenset()
    #: Pods of one PodGroup take different cards.
    spreads: bool = False
    #: Container and value that have no meaning; such a pod fits nowhere.
    problem: str = ""

    @property
    def is_bound_to_cards(self) -> bool:
        """Whether equal cards may be answered differently: uuids or other pods of the group decide."""
        return bool(self.use_uuids or self.avoid_uuids or self.spreads)


def vgpu_request(
    containers: Sequence[ContainerAmounts], annotations: Mapping[str, str], resources: VgpuResources = DEFAULT_RESOURCES
) -> VgpuRequest | None:
    """The request of a pod with these regular containers, None for a pod that asks for no vGPU."""
    containers = [each for each in containers if not each.init]
    if not any(_asks(each, resources) for each in containers):
        return None
    use, avoid = _lower(annotations.get(keys.USE_GPU_TYPE)), _lower(annotations.get(keys.NOUSE_GPU_TYPE))
    try:
        wanted = tuple(_container(each, resources, use, avoid) for each in containers)
        problem = ""
    except _InvalidAmountError as error:
        wanted, problem = (), str(error)
    return VgpuRequest(
        wanted,
        annotations.get(keys.VGPU_MODE, "").strip(),
        frozenset(_items(annotations.get(keys.VGPU_USE_UUID))),
        frozenset(_items(annotations.get(keys.VGPU_NOUSE_UUID))),
        annotations.get(keys.VGPU_PODGROUP_POLICY, "").strip() == "spread",
        problem,
    )


def _asks(container: ContainerAmounts, resources: VgpuResources) -> bool:
    return any(name in (resources.number, resources.memory) for name, _ in container.limits)


class _InvalidAmountError(ValueError):
    pass


def _container(
    container: ContainerAmounts, resources: VgpuResources, use: tuple[str, ...], avoid: tuple[str, ...]
) -> ContainerRequest | None:
    if not _asks(container, resources):
        return None
    number = _amount(container, resources.number, _MOST)
    if number == 0:
        return None
    memory = _amount(container, resources.memory, _MOST) or 0
    percentage = _amount(container, resources.percentage, _WHOLE)
    cores = _amount(container, resources.cores, _WHOLE) or 0
    return ContainerRequest(
        1 if number is None else number,
        Share(memory, 0 if memory else _WHOLE if percentage is None else percentage, cores, use, avoid),
    )


def _amount(container: ContainerAmounts, resource: str, most: int) -> int | None:
    """The limit, else the request of a container, in units; None when it names neither."""
    thousandths = dict(container.limits).get(resource)
    if thousandths is None:
        thousandths = dict(container.requests).get(resource)
    if thousandths is None:
        return None
    units, rest = divmod(thousandths, _UNIT)
    if rest or not 0 <= units <= most:
        shown = f"{thousandths / _UNIT:g}" if rest else str(units)
        form = f"an integer from 0 to {most}" if most == _WHOLE else "an integer of 0 or more"
        raise _InvalidAmountError(f"container {container.name}: {resource} is {shown}: expected {form}")
    return units


def _items(text: str | None) -> tuple[str, ...]:
    return tuple(part for part in (each.strip() for each in (text or "").split(",")) if part)


def _lower(text: str | None) -> tuple[str, ...]:
    return _items(text.lower() if text else None)
