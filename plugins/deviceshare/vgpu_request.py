"""The request of a pod for vGPU cards: the amounts of each container, and the cards it accepts."""

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
#: The device plugin finds the devices of a container by its index among `spec.containers`.
SIDECARS_GET_NONE: Final = "the device plugin serves only the containers of spec.containers"


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

    def amounts_on(self, card_memory: int) -> tuple[int, int]:
        """The requested units and cores on a card with the given total."""
        return self.memory_on(card_memory), self.cores

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
    """The request of all pods of one class."""

    #: By container of the pod, sidecars last; None for one that requests nothing.
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
        """Whether equal cards may have different results: uuids or other pods of the group decide."""
        return bool(self.use_uuids or self.avoid_uuids or self.spreads)


def vgpu_request(
    containers: Sequence[ContainerAmounts], annotations: Mapping[str, str], resources: VgpuResources = DEFAULT_RESOURCES
) -> VgpuRequest | None:
    """The request of a pod with these containers, None for a pod that requests no vGPU.

    Other init containers than sidecars do not count.
    """
    sidecars = [each for each in containers if each.sidecar and _asks(each, resources)]
    containers = [each for each in containers if not each.init]
    if not sidecars and not any(_asks(each, resources) for each in containers):
        return None
    use, avoid = _lower(annotations.get(keys.USE_GPU_TYPE)), _lower(annotations.get(keys.NOUSE_GPU_TYPE))
    try:
        wanted = tuple(container_request(each, resources, use, avoid) for each in (*containers, *sidecars))
        problem = f"sidecar {sidecars[0].name} asks for vGPUs: {SIDECARS_GET_NONE}" if sidecars else ""
    except InvalidAmountError as error:
        wanted, problem = (), str(error)
    return VgpuRequest(
        wanted,
        annotations.get(keys.VGPU_MODE, "").strip(),
        frozenset(listed_parts(annotations.get(keys.VGPU_USE_UUID))),
        frozenset(listed_parts(annotations.get(keys.VGPU_NOUSE_UUID))),
        annotations.get(keys.VGPU_PODGROUP_POLICY, "").strip() == "spread",
        problem,
    )


def _asks(container: ContainerAmounts, resources: VgpuResources) -> bool:
    return any(name in (resources.number, resources.memory) for name, _ in container.limits)


class AmountProblem(NamedTuple):
    """An amount of a container without a meaning."""

    resource: str
    shown: str
    #: Accepted form.
    form: str


class InvalidAmountError(ValueError):
    """A container with amounts without a meaning; the message names the first one."""

    def __init__(self, container: str, problems: Sequence[AmountProblem]) -> None:
        resource, shown, form = problems[0]
        super().__init__(f"container {container}: {resource} is {shown}: expected {form}")
        self.problems = tuple(problems)


def vgpu_amounts(container: ContainerAmounts, resources: VgpuResources) -> dict[str, int]:
    """The vGPU resources that a container names, a limit before a request: thousandths by name."""
    named = {**dict(container.requests), **dict(container.limits)}
    return {name: named[name] for name in msgspec.structs.astuple(resources) if name in named}


def container_request(
    container: ContainerAmounts,
    resources: VgpuResources,
    use_types: tuple[str, ...] = (),
    avoid_types: tuple[str, ...] = (),
) -> ContainerRequest | None:
    """The request of one container; None when it takes no card. Raises InvalidAmountError."""
    limits = dict(container.limits)
    if not _asks(container, resources) or limits.get(resources.number) == 0:
        return None
    named = vgpu_amounts(container, resources)
    if resources.number not in limits:
        named.pop(resources.number, None)
    problems = []
    for resource, thousandths in named.items():
        units, rest = divmod(thousandths, _UNIT)
        most = _WHOLE if resource in (resources.percentage, resources.cores) else _MOST
        if rest or not 0 <= units <= most:
            shown = f"{thousandths / _UNIT:.3f}".rstrip("0") if rest else str(units)
            if units > _MOST:
                shown = f"more than {_MOST}"
            form = f"an integer from 0 to {most}" if most == _WHOLE or units > most else "an integer of 0 or more"
            problems.append(AmountProblem(resource, shown, form))
    if problems:
        raise InvalidAmountError(container.name, problems)
    units_of = {resource: thousandths // _UNIT for resource, thousandths in named.items()}
    memory, cores = units_of.get(resources.memory, 0), units_of.get(resources.cores, 0)
    percentage = 0 if memory else units_of.get(resources.percentage, _WHOLE)
    return ContainerRequest(units_of.get(resources.number, 1), Share(memory, percentage, cores, use_types, avoid_types))


def listed_parts(text: str | None) -> tuple[str, ...]:
    """The parts of a comma-separated list, without surrounding blanks."""
    return tuple(part for part in (each.strip() for each in (text or "").split(",")) if part)


def _lower(text: str | None) -> tuple[str, ...]:
    return listed_parts(text.lower() if text else None)
