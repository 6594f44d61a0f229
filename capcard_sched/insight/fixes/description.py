"""Fixes in words, with the commands that make them. Costs to other jobs are those of a trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.objects import POD
from capcard_sched.insight.fixes.commands import RECREATE, render
from capcard_sched.insight.fixes.kinds import KINDS
from capcard_sched.insight.fixes.scene import Scene
from capcard_sched.model.trials import EndedPods, SuggestedChange, SuggestedFix
from capcard_sched.model.workload import WORKLOAD_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.core import Core
    from capcard_sched.insight.sources.object_view import Json, ObjectView
    from capcard_sched.insight.trials.change import ProposedChange
    from capcard_sched.model.job import Job


def describe_fix(
    core: Core, view: ObjectView, job: Job, owner: Json | None, changes: Sequence[ProposedChange]
) -> SuggestedFix:
    """The changes in words, the commands, and the pods that they end."""
    before, after = Scene(core, view, job, owner), Scene(core, view, job, owner)
    touched: list[set[tuple[str, ...]]] = []
    for change in changes:
        after.touched = set()
        KINDS[change.kind].edit(change, after)
        touched.append(after.touched)
    lines = render(after)
    before.ended = after.ended
    suggested: dict[str, SuggestedChange] = {}
    for change, keys in zip(changes, touched, strict=True):
        kind = KINDS[change.kind]
        own = list(dict.fromkeys(line for key, found in lines.items() if key in keys for line in found))
        is_typed = not any(line.endswith(RECREATE) for line in own) and not kind.is_of_conf
        old, new = kind.values(change, before)
        text = kind.text(change, before)
        suggested[text] = SuggestedChange(
            kind=change.kind,
            object=_object(change),
            subject=change.key if change.kind != "End" else "",
            before=old,
            after=new,
            text=text,
            command=" && ".join(own) if is_typed else "",
            yaml="" if is_typed else "\n".join(own),
        )
    ended = dict.fromkeys(change.key for change in changes if change.kind == "End")
    costs = [cost for change in changes if (cost := KINDS[change.kind].cost(change, job))]
    makers = {task.cls.owner_kind for task in job.pending.values()} - {""}
    if before.workload is None and makers and any(key[0] == POD for keys in touched for key in keys):
        costs.append(f"new pods of the {' and '.join(sorted(makers))} lack it: change its template, too")
    return SuggestedFix(
        changes=tuple(suggested.values()),
        ended=tuple(
            EndedPods(
                workload=name,
                queue=before.jobs[name][0].queue if name in before.jobs else "",
                pods=tuple(before.ended[name]),
            )
            for name in ended
        ),
        lines=tuple(dict.fromkeys(line for found in lines.values() for line in found)),
        costs=tuple(costs),
    )


def _object(change: ProposedChange) -> str:
    kind, namespace, name = change.target
    if change.kind == "End":
        namespace, word, name = change.key.split("/", 2)
        kind = WORKLOAD_KINDS.get(word, word)
    return f"{kind} {namespace + '/' if namespace else ''}{name}".strip()
