"""Reading the two CSV files of an openb cluster trace: typed rows, or an error that names the cell.

Columns may be in any order and further columns are ignored; every row must have as many cells as the header.
"""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

from capcard_sched.input_files import read_input

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_WHOLE = re.compile(r"[0-9]{1,18}")
_MODEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_QOS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?")

_NAME_FORM = "a Kubernetes object name (lower-case letters, digits, - and .)"
_WHOLE_FORM = "a whole number, 0 or more"
_SHARE_FORM = "a whole number from 0 to 1000 (thousandths of a card)"
_SECONDS_FORM = "whole seconds since the start of the trace"
_MODEL_FORM = "a card model (a node label's value: letters, digits, -, _ and ., at most 63)"
_MODELS_FORM = f"empty, or {_MODEL_FORM}, or several of them joined by |"


class TraceError(ValueError):
    """An unusable trace file: position, value found, accepted form.

    `line` counts from 1, the header included, and is 0 when the file as a whole is meant; `column` is "" when the row
    as a whole is meant.
    """

    def __init__(self, path: Path, line: int, column: str, found: str, accepted: str) -> None:
        place = str(path) + (f":{line}" if line else "") + (f": column {column}" if column else "")
        super().__init__(f"{place}: {found}; accepted: {accepted}")
        self.path = path
        self.line = line
        self.column = column
        self.found = found
        self.accepted = accepted


class TraceNode(NamedTuple):
    """One machine. `model` is "" without cards."""

    name: str
    cpu_milli: int
    memory_mib: int
    cards: int
    model: str


class TracePod(NamedTuple):
    """One pod. Times are seconds since the start of the trace; None if the trace has no value."""

    name: str
    cpu_milli: int
    memory_mib: int
    cards: int
    #: Thousandths of each card that the pod requested.
    share_milli: int
    #: Card models it accepts, repeats dropped; empty for any model.
    models: tuple[str, ...]
    qos: str
    #: The last phase in the trace.
    phase: str
    created: int
    deleted: int | None
    scheduled: int | None

    @property
    def duration_seconds(self) -> int | None:
        """Seconds it ran in the trace (or existed, when it never ran), at least 1; None when it never ended."""
        if self.deleted is None:
            return None
        begun = self.created if self.scheduled is None else self.scheduled
        return max(1, self.deleted - begun)


_PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS = (
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "pod_phase",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)


class _Row:
    """One line of a file; every reader raises TraceError with the cell's place."""

    def __init__(self, path: Path, line: int, cells: dict[str, str]) -> None:
        self.path = path
        self.line = line
        self.cells = cells

    def refuse(self, column: str, found: str, accepted: str) -> NoReturn:
        raise TraceError(self.path, self.line, column, found, accepted)

    def text(self, column: str, pattern: re.Pattern[str], accepted: str) -> str:
        cell = self.cells[column]
        if not pattern.fullmatch(cell):
            self.refuse(column, repr(cell), accepted)
        return cell

    def whole(self, column: str, accepted: str = _WHOLE_FORM) -> int:
        return int(self.text(column, _WHOLE, accepted))

    def optional_seconds(self, column: str) -> int | None:
        return self.whole(column, f"empty, or {_SECONDS_FORM}") if self.cells[column] else None


_Item = TypeVar("_Item", TraceNode, TracePod)


def read_nodes(path: Path) -> list[TraceNode]:
    """All machines of a node list, in file order. Raises TraceError at the first cell that cannot be used."""
    return _unique(path, _NODE_COLUMNS, _read_node, "sn")


def read_pods(path: Path) -> list[TracePod]:
    """All pods of a pod list, in file order. Raises TraceError at the first cell that cannot be used."""
    return _unique(path, _POD_COLUMNS, _read_pod, "name")


def _unique(path: Path, columns: tuple[str, ...], read: Callable[[_Row], _Item], key: str) -> list[_Item]:
    found: dict[str, _Item] = {}
    for row in _rows(path, columns):
        item = read(row)
        if item.name in found:
            row.refuse(key, f"{item.name!r} a second time", "a name that no other row has")
        found[item.name] = item
    return list(found.values())


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[_Row]:
    form = f"a CSV file in UTF-8 with the columns {', '.join(columns)}"
    try:
        with io.StringIO(read_input(path).decode("utf-8-sig"), newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, None)
            if header is None:
                raise TraceError(path, 0, "", "the file is empty", form)
            missing = [column for column in columns if column not in header]
            if missing:
                raise TraceError(path, 1, "", f"no column {', '.join(missing)}", form)
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(header):
                    found = f"{len(cells)} cells"
                    raise TraceError(path, reader.line_num, "", found, f"{len(header)} cells, as in the header")
                stripped = (cell.strip() for cell in cells)
                yield _Row(path, reader.line_num, dict(zip(header, stripped, strict=True)))
    except OSError as error:
        raise TraceError(path, 0, "", error.strerror or "cannot be read", form) from error
    except UnicodeDecodeError as error:
        raise TraceError(path, 0, "", "bytes that are not UTF-8", form) from error
    except csv.Error as error:
        raise TraceError(path, reader.line_num, "", f"broken CSV ({error})", form) from error


def _read_node(row: _Row) -> TraceNode:
    cards, model = row.whole("gpu"), row.cells["model"]
    if cards and not _MODEL.fullmatch(model):
        row.refuse("model", repr(model), f"{_MODEL_FORM}, since gpu is {cards}")
    return TraceNode(
        row.text("sn", _NAME, _NAME_FORM),
        row.whole("cpu_milli"),
        row.whole("memory_mib"),
        cards,
        model if cards else "",
    )


def _read_pod(row: _Row) -> TracePod:
    share_milli = row.whole("gpu_milli", _SHARE_FORM)
    if share_milli > 1000:
        row.refuse("gpu_milli", str(share_milli), _SHARE_FORM)
    models = [model.strip() for model in row.cells["gpu_spec"].split("|")]
    if models != [""] and not all(_MODEL.fullmatch(model) for model in models):
        row.refuse("gpu_spec", repr(row.cells["gpu_spec"]), _MODELS_FORM)
    phase = row.cells["pod_phase"]
    if phase not in _PHASES:
        row.refuse("pod_phase", repr(phase), f"one of {', '.join(_PHASES)}")
    created = row.whole("creation_time", _SECONDS_FORM)
    deleted, scheduled = row.optional_seconds("deletion_time"), row.optional_seconds("scheduled_time")
    if scheduled is not None and scheduled < created:
        row.refuse("scheduled_time", str(scheduled), f"empty, or at least creation_time ({created})")
    begun = created if scheduled is None else scheduled
    if deleted is not None and deleted < begun:
        row.refuse("deletion_time", str(deleted), f"empty, or at least the time it was created or scheduled ({begun})")
    return TracePod(
        name=row.text("name", _NAME, _NAME_FORM),
        cpu_milli=row.whole("cpu_milli"),
        memory_mib=row.whole("memory_mib"),
        cards=row.whole("num_gpu"),
        share_milli=share_milli,
        models=tuple(dict.fromkeys(model for model in models if model)),
        qos=row.text("qos", _QOS, "a word of letters, digits and -"),
        phase=phase,
        created=created,
        deleted=deleted,
        scheduled=scheduled,
    )
