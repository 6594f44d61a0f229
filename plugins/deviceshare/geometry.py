"""MIG: into which slices a card can be cut, and which slice a request gets.

A card works in one group of slices at a time. The position of a slice counts over its whole group, in table order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class SliceKind(msgspec.Struct, frozen=True):
    """Equal slices of a group."""

    name: str
    #: MiB of each.
    memory: int
    count: int


class SliceGroup(NamedTuple):
    """One way to cut a card."""

    name: str
    slices: tuple[SliceKind, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the group is a single slice."""
        return sum(kind.count for kind in self.slices) == 1

    def memory_at(self, position: int) -> int | None:
        """MiB of the slice at a position; None beyond the group."""
        for kind in self.slices:
            if position < kind.count:
                return kind.memory if position >= 0 else None
            position -= kind.count
        return None


class Geometry(NamedTuple):
    """The ways to cut the cards of some models."""

    #: Parts of the type that a device plugin registers.
    models: tuple[str, ...]
    groups: tuple[SliceGroup, ...]

    def group(self, name: str) -> SliceGroup | None:
        return next((group for group in self.groups if group.name == name), None)


class Slice(NamedTuple):
    """A slice of a card."""

    group: str
    position: int
    #: MiB.
    memory: int


def geometry_of(type: str, known: Iterable[Geometry]) -> Geometry | None:
    """The first geometry with a model that is contained in the card's type."""
    return next((entry for entry in known if any(model in type for model in entry.models)), None)


def find_slice(
    geometry: Geometry, mebibytes: int, *, group: str, taken: Collection[int], whole: bool = False
) -> Slice | None:
    """The smallest free slice with the requested MiB, in the first group that has one.

    `group`: the one in use, "" for none; `taken`: positions in use; `whole`: the whole card is requested, which a group
    of a single slice always satisfies.
    """
    groups = geometry.groups if not group else [each for each in (geometry.group(group),) if each is not None]
    for each in groups:
        if whole and each.is_whole and 0 not in taken:
            return Slice(each.name, 0, next(kind.memory for kind in each.slices if kind.count))
        found = _smallest(each, mebibytes, taken)
        if found is not None:
            return found
    return None


def _smallest(group: SliceGroup, mebibytes: int, taken: Collection[int]) -> Slice | None:
    offsets, offset = [], 0
    for kind in group.slices:
        offsets.append(offset)
        offset += kind.count
    for index in sorted(range(len(offsets)), key=lambda at: group.slices[at].memory):
        kind, first = group.slices[index], offsets[index]
        if kind.memory >= mebibytes:
            for position in range(first, first + kind.count):
                if position not in taken:
                    return Slice(group.name, position, kind.memory)
    return None


def _geometry(models: str, *groups: tuple[tuple[str, int, int], ...]) -> Geometry:
    return Geometry(
        tuple(models.split()),
        tuple(
            SliceGroup(f"group{number}", tuple(SliceKind(*kind) for kind in kinds))
            for number, kinds in enumerate(groups, start=1)
        ),
    )


#: Geometries in force where the ConfigMap of the device plugin names none.
DEFAULT_GEOMETRIES: Final = (
    _geometry("A30", (("1g.6gb", 6144, 4),), (("2g.12gb", 12288, 2),), (("4g.24gb", 24576, 1),)),
    _geometry(
        "A100-SXM4-40GB A100-40GB-PCIe A100-PCIE-40GB",
        (("1g.5gb", 5120, 7),),
        (("2g.10gb", 10240, 3), ("1g.5gb", 5120, 1)),
        (("3g.20gb", 20480, 2),),
        (("7g.40gb", 40960, 1),),
    ),
    _geometry(
        "A100-SXM4-80GB A100-80GB-PCIe A100-PCIE-80GB",
        (("1g.10gb", 9728, 7),),
        (("2g.20gb", 19968, 3), ("1g.10gb", 9728, 1)),
        (("3g.40gb", 40192, 2),),
        (("7g.80gb", 80896, 1),),
    ),
)
