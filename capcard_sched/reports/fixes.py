"""Renders the fixes of a job: a table of changes and costs, and below it the lines to type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from capcard_sched.model.quoting import brief, plural

if TYPE_CHECKING:
    from rich.console import RenderableType

    from capcard_sched.model.trials import FixSearch, StartablePods, SuggestedFix


def render_fixes(found: FixSearch) -> list[RenderableType]:
    """The fixes, the least disruptive first."""
    if found.reason:
        return [Text(""), Text(f"No fix: {found.reason}.")]
    end = f"; the search ended at its bound of {found.bound}" if found.bound else ""
    if not found.fixes:
        reach = [Text(_reach(found.reach))] if found.reach is not None else []
        tried = f" ({plural(found.trials, 'trial')} on a copy of the state{end})" if found.trials else ""
        return [Text(""), Text(f"No fix found with which {found.goal}{tried}."), *reach]
    table = Table("FIX", "CHANGE", "COST", box=None, pad_edge=False)
    table.columns[1].overflow = "fold"
    for number, fix in enumerate(found.fixes, 1):
        costs = _costs(fix)
        rows = max(len(fix.changes), len(costs))
        for row in range(rows):
            change = fix.changes[row].text if row < len(fix.changes) else ""
            joined = f"and {change}" if row and change else change
            table.add_row("" if row else str(number), joined, costs[row] if row < len(costs) else "")
    parts: list[RenderableType] = [
        Text(""),
        Text(f"Any one of these {_achieves(found)} (verified by simulation{end}):"),
        table,
    ]
    for number, fix in enumerate(found.fixes, 1):
        parts.append(Text(f"Fix {number}:", "bold"))
        parts += [Text(f"  {line}", no_wrap=True, overflow="ignore") for line in fix.lines]
    return parts


def _achieves(found: FixSearch) -> str:
    """`starts it`, `schedules the 3 pending pods`; without the number of pods if a fix changes it."""
    goal = found.goal
    if goal.startswith("the job starts") and any(
        one.kind == "MinAvailable" for fix in found.fixes for one in fix.changes
    ):
        return "starts it"
    if goal.startswith("the job starts"):
        return f"starts it{goal.removeprefix('the job starts')}"
    return f"schedules {goal.rsplit(maxsplit=2)[0]}"


def _reach(found: StartablePods) -> str:
    reason = f": {found.reason[:1].lower()}{found.reason[1:]}" if found.reason else ""
    if found.wanted == 1:
        alone = "starts with all other jobs ended" if found.alone else "does not start with all other jobs ended either"
        return sentence(f"The pod {alone}{reason}")
    pods = f"{found.now} can start now, and {found.alone} with all other jobs ended"
    return sentence(f"Of the {found.wanted} pods needed, {pods}{reason}")


def sentence(text: str) -> str:
    """A text with the full stop that it lacks."""
    return text if text.endswith("?") else f"{text}."


def _costs(fix: SuggestedFix) -> list[str]:
    costs = list(fix.costs)
    if fix.ended:
        pods = sum(len(ended.pods) for ended in fix.ended)
        costs += [f"{pods} pod{' ends' if pods == 1 else 's end'}"] if pods else []
        costs += [f"{ended.workload} does not start" for ended in fix.ended if not ended.pods]
    if fix.restarted:
        costs.append(f"restarts {plural(len(fix.restarted), 'running pod')} of the job")
    if fix.evicted:
        workloads = list(dict.fromkeys(pod.workload for pod in fix.evicted))
        costs.append(f"evicts {plural(len(fix.evicted), 'pod')} of {brief(workloads)}")
    if fix.started:
        costs.append(f"also starts {brief(fix.started)}")
    if fix.delayed:
        costs.append(f"longer wait of {brief(fix.delayed)}")
    if not fix.minimal:
        costs.append("not proven minimal")
    return costs or ["none"]
