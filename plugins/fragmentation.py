"""fragmentation: places pods where the devices that remain free stay usable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import numpy as np

from capcard_sched.framework.api.node_hooks import NODE_AMOUNTS, score
from capcard_sched.framework.api.plugin import Plugin, Sample
from capcard_sched.framework.fragmentation.card_groups import CardGroups
from capcard_sched.framework.fragmentation.free_cards import free_cards, sum_by_card
from capcard_sched.framework.fragmentation.node_value import UNITS, NodeValues
from capcard_sched.framework.fragmentation.request_mix import MixEntry, entry_problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.api.node_view import NodeView, PodSignature, Scores
    from capcard_sched.framework.api.shared_devices import SharedDevices
    from capcard_sched.framework.session.session import Session

#: Thousandths of a device per point: the loss of one device's use scores -100 under each of the two measures.
_PER_POINT: Final = 10 * UNITS
#: The mix is counted anew when this part of the pods changed, so that a change costs the same in any cluster.
_PART: Final = 16


class FragmentationArguments(msgspec.Struct, frozen=True):
    """Arguments of the plugin."""

    #: Score multiplier; 0 disables the score.
    weight: Annotated[int, msgspec.Meta(ge=0)] = 10
    #: Kinds of pods in place of those of the cluster, each with `resources`, `annotations` and `weight`.
    mix: list[MixEntry] = []


class Fragmentation(Plugin):
    """Scores a placement by the devices that remain usable ([for which clusters](performance.md#scores-by-cluster)).

    The mix of requests are the pods that wait and those that are bound. Whole devices and shares count alike, in parts
    of a device; cpu and memory count as they make devices unusable. Of the models of `A|B` with quota, a pod gets the
    one that loses fewer usable devices; of nodes that lose equally many, the one that keeps more space for the largest
    waiting gang. Nodes without devices get no points.
    """

    name = "fragmentation"
    Arguments = FragmentationArguments
    arguments: FragmentationArguments

    def setup(self) -> None:
        self._session: Session
        self._shared: SharedDevices | None = None
        self._values: NodeValues | None = None
        self._groups: CardGroups
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
        shared = self._shared = session.snapshot.shared_devices
        self._changed += len(session.changed.jobs)
        nodes = session.nodes
        known = nodes.generation, len(nodes), 0 if shared is None else shared.epoch
        if known != self._known or session.changed.everything:
            self._known = known
            self._groups = CardGroups(session)
        elif self._changed * _PART <= self._counted:
            return
        self._changed, self._counted = 0, len(session.snapshot.tasks_by_uid)
        self._values = self._groups.values(session, self.arguments.mix)

    @score(reads=NODE_AMOUNTS)
    def score_usable_devices(self, signature: PodSignature, rows: NodeView) -> Scores | None:
        """Points per row, 0 or less times `weight`: what the pod takes of the value of the node's free devices."""
        values, weight = self._values, self.arguments.weight
        if values is None or not weight:
            return None
        cls, shared = signature.cls, self._shared
        free, groups = rows.idle, rows.take(self._groups.of_row)
        states = None
        if shared is not None:
            states = shared.request_of(cls), shared.states(rows)
        gains = -values.losses(free, cls.fit_request, states, groups)
        return gains.astype(np.float64) * (weight / _PER_POINT)

    def metrics(self) -> Iterator[Sample]:
        """Free devices, and those that no kind of pods can use, by card."""
        if self._values is None:
            return
        for each in sum_by_card(free_cards(self._session, self.arguments.mix, self._groups) or ()):
            yield Sample("cards_free", {"card": each.card}, each.free / 1000)
            yield Sample("cards_stranded", {"card": each.card}, each.stranded / 1000)


__all__ = ["Fragmentation", "FragmentationArguments"]
