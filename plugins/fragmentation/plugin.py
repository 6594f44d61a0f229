"""The hooks of fragmentation."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import numpy as np

from capcard_sched.framework.api.node_hooks import NODE_AMOUNTS, score
from capcard_sched.framework.api.plugin import Plugin, Sample
from capcard_sched.plugins.fragmentation.node_value import EVEN, WEIGHTS, NodeGroup, NodeValues
from capcard_sched.plugins.fragmentation.request_mix import (
    MixEntry,
    entry_problem,
    kinds_of_entries,
    kinds_of_tasks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.api.node_view import NodeView, PodSignature, Scores
    from capcard_sched.framework.api.shared_devices import SharedDevices
    from capcard_sched.framework.session.session import Session

#: Thousandths of a device per point: the loss of one device's use scores -100 under each of the two measures.
_PER_POINT: Final = 10 * WEIGHTS * EVEN
#: The mix is counted anew when this part of the pods changed, so that a change costs the same in any cluster.
_PART: Final = 16


class FragmentationArguments(msgspec.Struct, frozen=True):
    """Arguments of the plugin."""

    #: Score multiplier; 0 disables the score.
    weight: Annotated[int, msgspec.Meta(ge=0)] = 10
    #: Kinds of pods in place of those of the cluster, each with `resources`, `annotations` and `weight`.
    mix: list[MixEntry] = []


class Fragmentation(Plugin):
    """Scores a placement by the devices that remain usable for the pods of the cluster.

    The mix of requests are the pods that wait and those that are bound. Whole devices and shares count alike, in parts
    of a device; cpu and memory count as they make devices unusable.
    """

    name = "fragmentation"
    Arguments = FragmentationArguments
    arguments: FragmentationArguments

    def setup(self) -> None:
        self._session: Session
        self._shared: SharedDevices | None = None
        self._values: NodeValues | None = None
        #: int64 [nodes]: number of the node's group.
        self._groups: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._by_number: list[NodeGroup] = []
        #: Generation of the nodes, and epoch of shared devices, that groups and values are of.
        self._known: tuple[int, int, int] | None = None
        #: Pods when the mix was counted, and changed jobs since then.
        self._counted = 0
        self._changed = 0

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> FragmentationArguments:
        arguments = problems.decode(FragmentationArguments, raw)
        for number, entry in enumerate(arguments.mix):
            problem = entry_problem(entry)
            if problem:
                problems.error("mix", f"entry {number}: {problem}", accepted="resources as quantities, weight above 0")
        return arguments

    def open(self, session: Session) -> None:
        self._session = session
        shared = self._shared = session.shared_devices
        self._changed += len(session.changed.jobs)
        nodes = session.nodes
        known = nodes.generation, len(nodes), 0 if shared is None else shared.epoch
        if known != self._known or session.changed.everything:
            self._known = known
            self._group()
            self._count()
        elif self._changed * _PART > self._counted:
            self._count()

    def _group(self) -> None:
        """Group the nodes by their cards. O(nodes)."""
        session, shared = self._session, self._shared
        numbers: dict[tuple[tuple[tuple[str, str], ...], int], int] = {}
        self._by_number = []
        of_row = []
        for node in session.nodes.nodes:
            offers = session.state.cards_of(node)
            idle = -1 if shared is None else shared.idle_state(node)
            key = tuple([(card, resource) for card, (_, resource) in offers.items()]), idle
            number = numbers.setdefault(key, len(numbers))
            if number == len(self._by_number):
                models: dict[str, set[str]] = {}
                for card, resource in key[0]:
                    models.setdefault(resource, set()).add(card)
                offered = {resource: frozenset(cards) for resource, cards in models.items()}
                self._by_number.append(NodeGroup(offered, idle))
            group = self._by_number[number]
            group.devices += sum([amount for amount, _ in offers.values()])
            of_row.append(number)
        if shared is not None:
            for number, count in Counter(of_row).items():
                group = self._by_number[number]
                group.devices += count * sum([shared.free_part(device) for device in shared.devices(group.idle)])
        self._groups = np.array(of_row, dtype=np.int64)

    def _count(self) -> None:
        """Count the mix. O(pods), once a part of them changed."""
        session, shared = self._session, self._shared
        self._changed, self._counted = 0, len(session.tasks_by_uid)
        resources = sorted({resource for group in self._by_number for resource in group.offers})
        if self.arguments.mix:
            kinds = kinds_of_entries(self.arguments.mix, resources, shared)
        else:
            kinds = kinds_of_tasks(session.tasks_by_uid.values(), resources, shared)
        values = NodeValues(kinds, self._by_number, session.resources, resources, shared)
        self._values = values or None

    @score(reads=NODE_AMOUNTS)
    def score_usable_devices(self, signature: PodSignature, rows: NodeView) -> Scores | None:
        """Points per row, 0 or less times `weight`: what the pod takes of the value of the node's free devices."""
        values, weight = self._values, self.arguments.weight
        if values is None or not weight:
            return None
        cls, shared = signature.cls, self._shared
        free, groups = rows.idle, rows.take(self._groups)
        after, states, states_after = free - cls.fit_request, None, None
        if shared is not None:
            states = states_after = shared.states(rows)
            request = shared.request_of(cls)
            if request is not None:
                following = {state: shared.state_after(request, state) for state in set(states.tolist())}
                states_after = np.array([following[state] for state in states.tolist()], dtype=np.int64)
        loss = values.of(after, states_after, groups) - values.of(free, states, groups)
        return loss.astype(np.float64) * (weight / _PER_POINT)

    def metrics(self) -> Iterator[Sample]:
        """Free devices, and those that no kind of pods can use, by card."""
        values = self._values
        if values is None:
            return
        view = self._session.all_rows()
        states = None if self._shared is None else self._shared.states(view)
        total, stranded = values.stranded(view.idle, states, self._groups)
        yield Sample("fragmentation_free_devices", {}, int(total.sum()) / 1000)
        yield Sample("fragmentation_stranded_devices", {}, int(stranded.sum()) / 1000)


__all__ = ["Fragmentation", "FragmentationArguments"]
