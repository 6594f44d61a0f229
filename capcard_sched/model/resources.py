"""Resource names, their base units and their columns.

Base units: milli-CPU for `cpu`, bytes for `memory`, `ephemeral-storage` and huge pages, plain units for `pods` and for
capacities of DeviceClasses (`model.device_quota`), and thousandths of a unit for everything else (one `nvidia.com/gpu`
is 1000). Amounts are exact integers everywhere.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"
CPU_COLUMN, MEMORY_COLUMN, PODS_COLUMN = 0, 1, 2

#: Shares of cards: a queue limits those that it names, as plain amounts, whatever the card model.
VGPU_RESOURCES: Final = ("volcano.sh/vgpu-cores", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-number")
#: Similarity above which a name of a resource is suggested.
_SIMILAR: Final = 0.85
#: Amounts by resource name, in base units.
Amounts = Mapping[str, int]
#: int64, one entry per resource column.
Vector = npt.NDArray[np.int64]
#: int64 [nodes, resources].
Matrix = npt.NDArray[np.int64]


class ResourceColumns:
    """The columns of all resource vectors: name to column and back.

    Columns are never removed. `width` is the allocated width of vectors and matrices (>= len(self)); it grows in steps,
    and the owner of a vector pads it when `width` has changed. Column order has no meaning: code that needs an order
    uses `sorted_names`.
    """

    __slots__ = ("_columns", "names", "width")

    def __init__(self) -> None:
        self.names: list[str] = [CPU, MEMORY, PODS]
        self._columns: dict[str, int] = {CPU: 0, MEMORY: 1, PODS: 2}
        self.width = 8

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def find(self, name: str) -> int | None:
        """The column of `name`, or None when no object contains it."""
        return self._columns.get(name)

    def column(self, name: str) -> int:
        """The column of `name`, added when new."""
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = len(self.names)
            self.names.append(name)
            if column >= self.width:
                self.width *= 2
        return column

    def vector(self, amounts: Amounts) -> Vector:
        """Amounts as a fresh int64 vector of `width` entries; new names get a column."""
        columns = [(self.column(name), amount) for name, amount in amounts.items()]
        vector = np.zeros(self.width, dtype=np.int64)
        for column, amount in columns:
            vector[column] = amount
        return vector

    def zeros(self) -> Vector:
        """A fresh zero vector."""
        return np.zeros(self.width, dtype=np.int64)

    def fit(self, vector: Vector) -> Vector:
        """`vector` itself, or a zero-padded copy when columns were added after its creation."""
        if len(vector) == self.width:
            return vector
        padded = np.zeros(self.width, dtype=np.int64)
        padded[: len(vector)] = vector
        return padded

    def amounts(self, vector: Vector) -> dict[str, int]:
        """The non-zero entries of a vector by name, cpu and memory first, the rest sorted."""
        found = {name: int(vector[c]) for c, name in enumerate(self.names) if c < len(vector) and vector[c]}
        return {name: found[name] for name in self.sorted_names(found)}

    @staticmethod
    def sorted_names(names: Iterable[str]) -> list[str]:
        """cpu, memory, then the others in sorted order: the order of every message."""
        rank = {CPU: 0, MEMORY: 1}
        return sorted(names, key=lambda name: (rank.get(name, 2), name))


def similar_resource(name: str, known: Iterable[str]) -> str:
    """The known name that `name` most likely misspells; "" for none."""
    close = difflib.get_close_matches(name, sorted(set(known) - {name}), n=1, cutoff=_SIMILAR)
    return close[0] if close else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a resource that does not exist: the name that it most likely misspells, or ""."""
    meant = similar_resource(name, known)
    return f"; did you mean {meant}?" if meant else ""
