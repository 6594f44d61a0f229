"""Taints that keep pods from a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.insight.changes import remove_taint
from capcard_sched.insight.fixes.change import Candidate, ProposedChange
from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.model.annotations import NODE_UNSCHEDULABLE
from capcard_sched.model.node_conditions import conditions_of
from capcard_sched.model.selectors import untolerated_taint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation


class ExcludedNode(NamedTuple):
    """A node that is cordoned, or has a taint `key=value:effect`, and otherwise fits a number of pods."""

    pods: int
    is_cordoned: bool
    taint: str
    name: str

    def changes(self) -> Candidate:
        """What admits pods to it."""
        target = ("Node", "", self.name)
        cordoned = (ProposedChange("Uncordon", target),) if self.is_cordoned else ()
        return (*cordoned, ProposedChange("Untaint", target, self.taint)) if self.taint else cordoned


class Untaint(FixKind):
    """A node that is tainted takes the pods. Not where the taint is a condition of the node."""

    words = "remove the taint {key} of node {name}"
    before = "{key}"
    disruption = 3

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """As many nodes as the needed pods take."""
        rows = [row for row in excluded_nodes(situation) if row.taint and not row.is_cordoned]
        yield tuple(change for row in first_that_fit(situation, rows) for change in row.changes())

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        """Remove it."""
        remove_taint(scene.edit(*change.target), change.key)


def excluded_nodes(situation: Situation) -> list[ExcludedNode]:
    """Nodes that one change opens to the needed pods, the best first. Not those that need repair."""
    if not situation.needed:
        return []
    task = situation.needed[0]
    found: list[ExcludedNode] = []
    for node in situation.state.nodes.by_name.values():
        others = [one for one in node.taints if one.key != NODE_UNSCHEDULABLE]
        taint = untolerated_taint(others, task.cls.tolerations)
        if (
            (not node.unschedulable and taint is None)
            or conditions_of(node.taints)
            or not _is_ready(situation, node.name)
        ):
            continue
        if fits := situation.fits(node, task):
            found.append(ExcludedNode(fits, node.unschedulable, taint.text if taint is not None else "", node.name))
    return sorted(found, key=lambda row: (bool(row.taint), -row.pods, row.name))


def first_that_fit(situation: Situation, rows: Sequence[ExcludedNode]) -> Sequence[ExcludedNode]:
    """The first rows that fit the pods that have no node; all rows when they do not."""
    short = max(1, len(situation.needed) - situation.fitting())
    for count in range(1, len(rows)):
        if sum(row.pods for row in rows[:count]) >= short:
            return rows[:count]
    return rows


def _is_ready(situation: Situation, name: str) -> bool:
    """False for a node whose kubelet reports, or lets expire, another condition; taints follow later."""
    node = situation.view.get("Node", "", name) or {}
    conditions = (node.get("status") or {}).get("conditions") or ()
    return all(one.get("status") == "True" for one in conditions if one.get("type") == "Ready")
