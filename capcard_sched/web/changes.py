"""ProposedChanges of the page what-if, and their effect."""

from __future__ import annotations

from typing import NamedTuple

from capcard_sched.model.trials import InsightPart, WhatIfReport


class ProposedChanges(NamedTuple):
    """ProposedChanges, each as on the command line: `team-a/NVIDIA-H200=24`, `gpu-1`, `4xgpu-1`; the text of a file."""

    quota: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    add_nodes: tuple[str, ...] = ()
    conf: str = ""


class Comparison(InsightPart, frozen=True, kw_only=True):
    """The effect of changes, or the error that makes them invalid."""

    report: WhatIfReport | None = None
    error: str = ""
    warnings: tuple[str, ...] = ()
