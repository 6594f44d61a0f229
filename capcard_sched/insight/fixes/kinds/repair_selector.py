"""Misspelt labels in node selectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.objects import spec
from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.sources.changes import set_spec
from capcard_sched.insight.trials.change import Candidate, ProposedChange
from capcard_sched.model.node_labels import absent_of, pairs_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation


class RepairSelectorFix(FixKind):
    """The node selector of the job's pods has the labels of nodes that it most likely means."""

    disruption = 1
    is_of_job = True

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """One candidate that repairs every misspelt label; none for pods without a workload: they are immutable."""
        scene = situation.scene
        if scene.workload is not None and any(_repaired(scene, template) for _, template in scene.templates()):
            yield (ProposedChange("RepairSelector", situation.target),)

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        """Replace the pairs."""
        del change
        for _, template in scene.templates():
            if repaired := _repaired(scene, template):
                own = spec(template)["nodeSelector"]
                found = dict(repaired.get(pair, pair) for pair in own.items())
                set_spec(template, "nodeSelector", found)

    def text(self, change: ProposedChange, scene: Scene) -> str:
        """`job/train: node selector pool=trainng becomes pool=training`."""
        del change
        found = {k: v for _, template in scene.templates() for k, v in _repaired(scene, template).items()}
        texts = [f"{pairs_text(dict([old]))} becomes {pairs_text(dict([new]))}" for old, new in found.items()]
        return f"{scene.name}: node selector {', '.join(texts)}"


def _repaired(scene: Scene, template: Mapping[str, object]) -> dict[tuple[str, str], tuple[str, str]]:
    """Pairs that no node has, to those that they most likely misspell."""
    nodes = {node.name: node.labels for node in scene.core.snapshot().state.nodes.by_name.values()}
    found = {}
    for pair in (spec(dict(template)).get("nodeSelector") or {}).items():
        for one in absent_of(dict([pair]), None, nodes):
            key, equals, value = one.meant.partition("=")
            if key:
                found[pair] = (key, value if equals else pair[1])
    return found
