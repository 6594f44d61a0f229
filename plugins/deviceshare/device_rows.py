"""The devices of all nodes: ledgers by node, the number of each node's state by row, their accounting and series."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.api.plugin import Sample
from capcard_sched.model.reasons import DEVICE_ANNOTATION, DEVICE_REGISTRATION, DEVICES_OVERBOOKED
from capcard_sched.model.status import TaskStatus
from capcard_sched.model.task_class import DeviceAccounting
from capcard_sched.plugins.deviceshare.card_ledger import CardLedger, raised
from capcard_sched.plugins.deviceshare.device_states import DeviceStates
from capcard_sched.plugins.deviceshare.vgpu import VgpuDevices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import NodeView
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.reasons import Reason
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.deviceshare.card_ledger import Cards
    from capcard_sched.plugins.deviceshare.device_states import NodeCards
    from capcard_sched.plugins.deviceshare.device_type import DeviceType

    Numbers = npt.NDArray[np.int64]

_MOST_EMPTY = 16384
_NEVER_WRITTEN: tuple[float, Mapping[str, str]] = (0.0, {})
#: One for all nodes: an empty set takes 216 bytes.
_NO_CARDS: frozenset[str] = frozenset()


class NodeDevices:
    """What one node has and who holds it."""

    __slots__ = ("generation", "last_order", "ledgers", "notes", "overbooked", "problems", "warnings")

    def __init__(self, kinds: int) -> None:
        #: By kind; None if the node has none.
        self.ledgers: list[CardLedger | None] = [None] * kinds
        #: Of the node, when its annotations were read.
        self.generation = -1
        self.warnings: tuple[str, ...] = ()
        #: By pod uid: its annotations when they were read last, and the texts that its bookings were read from.
        self.notes: dict[str, tuple[Mapping[str, str], tuple[str, ...]]] = {}
        #: By pod uid: what is wrong with them.
        self.problems: dict[str, tuple[str, ...]] = {}
        #: Uuids of cards whose pods hold more than they have.
        self.overbooked = _NO_CARDS
        #: Order number of the pod that was bound last.
        self.last_order = 0

    @property
    def present(self) -> list[CardLedger]:
        return [ledger for ledger in self.ledgers if ledger is not None]

    def release(self, uid: str) -> None:
        for ledger in self.present:
            ledger.release(uid)

    def set_leaving(self, uid: str, *, leaving: bool) -> None:
        """Record whether a pod is being released."""
        for ledger in self.present:
            ledger.set_leaving(uid, leaving=leaving)

    @property
    def cards(self) -> NodeCards:
        """The state now, every pod counted."""
        return tuple(None if ledger is None else ledger.cards for ledger in self.ledgers)

    @property
    def future(self) -> NodeCards:
        """The state without the pods that leave."""
        return tuple(None if ledger is None else ledger.future for ledger in self.ledgers)


class DeviceRows:
    """See the module docstring. Rows are those of the session."""

    def __init__(self, types: Sequence[DeviceType]) -> None:
        self.types = types
        self.by_node: dict[str, NodeDevices] = {}
        self.states = DeviceStates()
        #: States in excess of the nodes above which the states are numbered anew.
        self.most_empty = _MOST_EMPTY
        #: Annotations to write on nodes; emptied by the reader.
        self.node_writes: list[tuple[Node, Mapping[str, str]]] = []
        #: Nodes and pods with something new that is wrong, with one sentence each; emptied by the reader.
        self.news: list[tuple[Node | Task, Reason, str]] = []
        #: By node: when annotations were written on it last, Unix seconds, and which.
        self._written: dict[str, tuple[float, Mapping[str, str]]] = {}
        #: Nodes whose offer ends by itself: Unix seconds.
        self._ends: dict[str, float] = {}
        #: Equal cards without pods are one tuple.
        self._idle: dict[Cards, Cards] = {}
        #: By kind, how many cards there are of each memory size.
        self._memories: list[Counter[int]] = [Counter() for _ in types]
        #: Increases when a node has other devices.
        self.offers = 0
        self._names: list[str] = []
        self._generation = -1
        self._numbers: Numbers = np.zeros(0, dtype=np.int64)
        #: Row to the number of its future state, where pods leave.
        self._futures: dict[int, int] = {}

    @property
    def numbers(self) -> Numbers:
        """int64 [nodes]: the state of each node."""
        return self._numbers

    def numbers_of(self, view: NodeView, plugin: str) -> Numbers:
        """The states of a view: int64 [k]."""
        found = view.state(plugin, self._numbers)
        if view.future and self._futures:
            futures, pairs = self._futures, zip(view.rows.tolist(), found.tolist(), strict=True)
            found = np.array([futures.get(row, number) for row, number in pairs], dtype=np.int64)
        return found

    # --- from session to session ------------------------------------------------------------------------------------

    def catch_up(self, session: Session, *, anew: bool) -> bool:
        """Take up what changed; O(nodes) when the set of nodes did. Whether states were numbered anew.

        `anew`: every registration is to be read again.
        """
        table, now = session.nodes, session.now
        moved = False
        if table.generation != self._generation or len(self._names) != len(table):
            self._generation = table.generation
            names = table.names
            moved, self._names = names != self._names, names
        if anew or session.changed.everything:
            stale: Iterable[str] = table.names
            gone = {*self.by_node, *self._written} - table.by_name.keys()
        else:
            ended = [name for name, moment in self._ends.items() if now > moment]
            stale = sorted({*session.changed.nodes, *ended})
            gone = {name for name in stale if name not in table.by_name}
        for name in gone:
            self._drop(name)
            self._written.pop(name, None)
        crowded = len(self.states) > len(table) + self.most_empty
        if crowded:
            self.states = DeviceStates(self.states.first + len(self.states))
            self._idle = {}
        moved = moved or crowded or len(self._numbers) != len(table)
        if moved:
            self._numbers = np.zeros(len(table), dtype=np.int64)
            self._futures = {}
        for name in stale:
            node = table.by_name.get(name)
            if node is not None:
                self._look(node, now, anew=anew)
                if not moved:
                    self.write(node)
        if moved:
            nothing = self.states.number((None,) * len(self.types))
            self._numbers[:] = nothing
            for name in self.by_node:
                self.write(table.by_name[name])
        return crowded

    def _look(self, node: Node, now: float, *, anew: bool) -> None:
        devices = self.by_node.get(node.name)
        if devices is None:
            devices = NodeDevices(len(self.types))
        ended = now > self._ends.get(node.name, math.inf)
        if anew or ended or devices.generation != node.generation:
            devices.generation = node.generation
            self._read_offers(node, devices, now)
        self._read_pods(node, devices)
        self._look_for_overbooked(node, devices)
        if devices.present or devices.warnings:
            self.by_node[node.name] = devices
        else:
            self._drop(node.name)

    def _drop(self, name: str) -> None:
        devices = self.by_node.pop(name, None)
        self._ends.pop(name, None)
        for index, ledger in enumerate(() if devices is None else devices.ledgers):
            self._count_cards(index, ledger, -1)

    def _read_offers(self, node: Node, devices: NodeDevices, now: float) -> None:
        warnings: list[str] = []
        self._ends.pop(node.name, None)
        for index, kind in enumerate(self.types):
            notes = kind.node_write(node, now, *self._written.get(node.name, _NEVER_WRITTEN))
            if notes is not None:
                self._written[node.name] = now, notes
                self.node_writes.append((node, notes))
            offer = kind.offer_of(node, now)
            if offer is not None:
                warnings += offer.warnings
                if offer.until is not None:
                    self._ends[node.name] = min(offer.until, self._ends.get(node.name, math.inf))
            known = devices.ledgers[index]
            if offer is None or not offer.uuids:
                devices.ledgers[index] = None
            elif known is None or (known.uuids, known.idle) != (offer.uuids, offer.idle):
                idle = self._idle.setdefault(offer.idle, offer.idle)  # equal nodes share one tuple
                devices.ledgers[index] = CardLedger(offer.uuids, idle)
            else:
                continue
            self.offers += devices.ledgers[index] is not known
            devices.notes.clear()  # the pods are booked anew
            self._count_cards(index, known, -1)
            self._count_cards(index, devices.ledgers[index], +1)
        if tuple(warnings) != devices.warnings:
            devices.warnings = tuple(warnings)
            self.news += [(node, DEVICE_REGISTRATION, warning) for warning in warnings]

    def _count_cards(self, index: int, ledger: CardLedger | None, sign: int) -> None:
        """Keep count of the cards of each size."""
        for card in () if ledger is None else ledger.idle:
            self._memories[index][card.model.memory] += sign
            if not self._memories[index][card.model.memory]:
                del self._memories[index][card.model.memory]

    def _read_pods(self, node: Node, devices: NodeDevices) -> None:
        """Book the pods that are on the node by their annotations. O(pods on the node)."""
        tasks = node.tasks
        for ledger in devices.present:
            for uid in [uid for uid in ledger.held if uid not in tasks]:
                ledger.release(uid)
        for uid in [uid for uid in devices.notes if uid not in tasks]:
            del devices.notes[uid]
            devices.problems.pop(uid, None)
        noted = [task for task in tasks.values() if task.device_notes or self._is_unnoted(task, devices)]
        for task in sorted(noted, key=lambda task: (task.created, task.uid)):
            self._read_pod(task, devices)

    def _is_unnoted(self, task: Task, devices: NodeDevices) -> bool:
        """Whether a pod holds devices of the node that no annotation names: another scheduler placed it."""
        return bool(task.cls.device_containers) and any(
            ledger is not None and kind.takes_devices(task.cls) and not kind.note_of(task)
            for kind, ledger in zip(self.types, devices.ledgers, strict=True)
        )

    def _look_for_overbooked(self, node: Node, devices: NodeDevices) -> None:
        found = {
            uuid: card
            for ledger in devices.present
            if any(card.is_overbooked for card in ledger.cards)
            for uuid, card in zip(ledger.uuids, ledger.cards, strict=True)
            if card.is_overbooked
        }
        self.news += [
            (node, DEVICES_OVERBOOKED, DEVICES_OVERBOOKED.render(card=uuid, detail=found[uuid].shown_use))
            for uuid in sorted(found.keys() - devices.overbooked)
        ]
        devices.overbooked = frozenset(found) if found else _NO_CARDS

    def _read_pod(self, task: Task, devices: NodeDevices) -> None:
        seen, booked = devices.notes.get(task.uid, (None, ()))
        if seen is not task.device_notes:  # annotations are replaced, not edited
            notes = tuple(kind.note_of(task) for kind in self.types)
            devices.notes[task.uid] = task.device_notes, notes
            if seen is None or notes != booked:
                self._book(task, notes, devices)
        devices.set_leaving(task.uid, leaving=task.status is TaskStatus.RELEASING)

    def _book(self, task: Task, notes: tuple[str, ...], devices: NodeDevices) -> None:
        """Book a pod by its annotations."""
        problems: list[str] = []
        for kind, note, ledger in zip(self.types, notes, devices.ledgers, strict=True):
            if ledger is None:
                continue
            ledger.release(task.uid)
            if not note and kind.takes_devices(task.cls):
                problems.append(f"{kind.note_key} is missing: the devices of the pod are not counted")
            if note:
                found = raised(kind.booked(task, ledger), ledger.cards, kind.least(task.cls), kind.note_key)
                if found.shares:
                    ledger.book(task.uid, found.shares)
                problems += found.problems
            devices.last_order = max(devices.last_order, kind.order_in(task.device_notes))
        if tuple(problems) != devices.problems.get(task.uid, ()):
            devices.problems[task.uid] = tuple(problems)
            self.news += [(task, DEVICE_ANNOTATION, problem) for problem in problems]

    def smallest_memory(self) -> tuple[int, ...]:
        """Memory of the smallest registered card, by kind; 0 without any."""
        return tuple(min(self._memories[index], default=0) for index in range(len(self.types)))

    def registered(self) -> tuple[tuple[int, int], ...]:
        """Memory and number of all registered cards, by kind."""
        return tuple((sum(size * count for size, count in sizes.items()), sizes.total()) for sizes in self._memories)

    def next_look(self, now: float) -> float | None:
        """When an offer ends although nothing changes, Unix seconds."""
        return min((moment for moment in self._ends.values() if moment >= now), default=None)

    # --- in a session -----------------------------------------------------------------------------------------------

    def at(self, node: Node) -> NodeDevices | None:
        return self.by_node.get(node.name)

    def write(self, node: Node) -> None:
        """The ledgers of a node changed: so does the number of its state."""
        devices, row = self.by_node.get(node.name), node.row
        if devices is None:
            self._numbers[row] = self.states.number((None,) * len(self.types))
            self._futures.pop(row, None)
            return
        now, future = devices.cards, devices.future
        self._numbers[row] = self.states.number(now)
        if future == now:
            self._futures.pop(row, None)
        else:
            self._futures[row] = self.states.number(future)

    def bookings(self) -> Iterator[tuple[str, int, CardLedger]]:
        """Every ledger, as node name, index of the kind, and ledger; by name of the node."""
        for name in sorted(self.by_node):
            for index, ledger in enumerate(self.by_node[name].ledgers):
                if ledger is not None:
                    yield name, index, ledger


def accounting_of(types: Sequence[DeviceType], rows: DeviceRows) -> DeviceAccounting:
    """Devices are charged as the kinds count them; nodes need not have them free as amounts."""
    smallest = rows.smallest_memory()
    totals: dict[str, int] = {}
    for kind, (memory, cards) in zip(types, rows.registered(), strict=True):
        totals |= kind.totals(memory, cards)

    def charge(cls: TaskClass) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for kind, memory in zip(types, smallest, strict=True):
            found |= kind.charge(cls, memory)
        return found

    def placed_charge(cls: TaskClass, notes: Mapping[str, str]) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for kind in types:
            found |= kind.placed_charge(cls, notes)
        return found

    return DeviceAccounting(
        (*(kind.accounting_version for kind in types), smallest),
        frozenset().union(*(kind.own_resources for kind in types)),
        frozenset().union(*(kind.uncounted_resources for kind in types)),
        frozenset().union(*(kind.shares for kind in types)),
        charge,
        placed_charge,
        totals,
    )


def samples(rows: DeviceRows, tasks: Mapping[str, Task]) -> Iterator[Sample]:
    """Cards and their pods. There is a series exactly for every card, and for every pod on a card."""
    for node, kind, ledger in rows.bookings():
        if isinstance(rows.types[kind], VgpuDevices):
            yield from _cards(node, ledger)
            yield from _pods(node, ledger, tasks)


def _cards(node: str, ledger: CardLedger) -> Iterator[Sample]:
    for uuid, card in zip(ledger.uuids, ledger.cards, strict=True):
        labels = {"devID": uuid, "NodeName": node}
        yield Sample("vgpu_device_shared_number", labels, card.use.number)
        yield Sample("vgpu_device_allocated_memory", labels, card.used_memory)
        yield Sample("vgpu_device_allocated_cores", labels, card.use.cores)
        yield Sample("vgpu_device_memory_limit", labels, card.model.memory)


def _pods(node: str, ledger: CardLedger, tasks: Mapping[str, Task]) -> Iterator[Sample]:
    """Pods of equal name on one card count together: the series has no namespace."""
    sums: dict[tuple[str, str], list[int]] = {}
    for uid, shares in ledger.held.items():
        task = tasks.get(uid)
        if task is None:
            continue
        for share in shares:
            both = sums.setdefault((ledger.uuids[share.card], task.name), [0, 0])
            both[0] += share.booking.memory
            both[1] += share.booking.cores
    for (uuid, pod), (memory, cores) in sorted(sums.items()):
        labels = {"devID": uuid, "NodeName": node, "podName": pod}
        yield Sample("vgpu_device_memory_allocation_for_a_certain_pod", labels, memory)
        yield Sample("vgpu_device_core_allocation_for_a_certain_pod", labels, cores)
