"""The time of a page, and the part of the history before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.model.queue import ROOT
from capcard_sched.model.timestamps import SPAN_FORM, DurationError, format_timestamp, parse_span, parse_timestamp
from capcard_sched.web.views import Moment

if TYPE_CHECKING:
    from collections.abc import Collection

    from capcard_sched.web.cluster import Cluster
    from capcard_sched.web.history import EvictionMark, History

#: Microseconds of a second.
_SECOND: Final = 1_000_000


def moment_of(cluster: Cluster) -> Moment:
    """The header of a page."""
    history = cluster.history
    at = 0.0 if history is None else min(history.seconds, max(0.0, cluster.now - history.begin))
    return Moment(
        source=cluster.source,
        now=format_timestamp(cluster.now),
        at=at,
        length=0.0 if history is None else history.seconds,
        begin="" if history is None else format_timestamp(history.begin),
        live=cluster.is_live,
        has_usage=bool(cluster.ledger),
        queues=_in_order_of_colors(cluster),
    )


def _in_order_of_colors(cluster: Cluster) -> tuple[str, ...]:
    """Visible queues by name; `default` and `root`, which often have no jobs, last."""
    state = cluster.core.snapshot().state
    last = (state.default_queue, ROOT)
    return tuple(sorted(filter(cluster.may_see_queue, state.queues), key=lambda name: (name in last, name)))


def parse_moment(text: str, history: History) -> float:
    """Unix seconds of `at`: a time, or a span or seconds since the beginning. Raises ValueError."""
    form = f"expected a time such as {format_timestamp(history.begin)}, or {SPAN_FORM} since the beginning"
    try:
        if "T" in text:
            found = parse_timestamp(text)
        elif text.replace(".", "", 1).isdigit():
            found = history.begin + float(text)
        else:
            found = history.begin + parse_span(text) / _SECOND
    except (ValueError, DurationError):
        raise ValueError(f"at: {text!r}: {form}") from None
    if not history.begin <= found <= history.end:
        ends = f"{format_timestamp(history.begin)} and {format_timestamp(history.end)}"
        raise ValueError(f"at: {text!r}: must be between {ends}")
    return found


def past_evictions(cluster: Cluster, queues: Collection[str] | None = None) -> tuple[EvictionMark, ...]:
    """Evictions up to now of pods that the viewer may see; `queues`: of these only."""
    history = cluster.history
    if history is None:
        return ()
    return tuple(
        one
        for one in history.evictions
        if history.begin + one.at <= cluster.now
        and (queues is None or one.queue in queues)
        and cluster.may_see(one.pod.partition("/")[0])
    )
