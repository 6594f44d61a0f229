"""The page of changes: a form, and the differences that the changes make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from capcard_sched.insight.trials.forked_copy import ForkedCopyError, in_copy
from capcard_sched.web.card_sums import capacity_of
from capcard_sched.web.changes import Comparison, ProposedChanges
from capcard_sched.web.moments import moment_of
from capcard_sched.web.views import WhatIfView

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.web.cluster import Cluster


def what_if_view(cluster: Cluster, query: Mapping[str, str]) -> WhatIfView:
    """The page of the changes quota, drain, add-nodes and conf: several values with commas."""
    state = cluster.core.snapshot().state
    quota, drain, add_nodes, conf = (query.get(name, "").strip() for name in ("quota", "drain", "add-nodes", "conf"))
    view = WhatIfView(
        moment=moment_of(cluster),
        queues=tuple(sorted(filter(cluster.may_see_queue, state.queues))),
        cards=tuple(sorted(capacity_of(cluster).cards)),
        nodes=tuple(sorted(state.nodes.by_name)),
        quota=quota,
        drain=drain,
        add_nodes=add_nodes,
        conf=conf,
    )
    if not (quota or drain or add_nodes or conf):
        return view
    if cluster.namespaces is not None:
        return replace(view, error="access denied: a simulation shows the jobs of all namespaces")
    changes = ProposedChanges(_split(quota), _split(drain), _split(add_nodes), conf)
    try:
        found = in_copy(lambda: cluster.what_if(changes), Comparison)
    except ForkedCopyError as error:  # it ends after its time, and with its memory
        return replace(view, error=f"no result within the time and memory of a comparison: {error}")
    return replace(view, report=found.report, error=found.error, warnings=found.warnings)


def _split(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))
