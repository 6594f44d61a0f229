"""Plots as SVG without scripts and styles: classes name the colors, HTML around them has the labels."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from markupsafe import Markup, escape

from capcard_sched.model.quantity import shown_amount
from capcard_sched.model.quoting import escaped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from capcard_sched.web.history import CardSeries, EvictionMark
    from capcard_sched.web.views import CardBox, StagePeriod, Tenant

#: Units of the view box; a plot is stretched to its panel.
WIDTH, HEIGHT = 1000, 200
_TICKS: Final = 5
_HOUR: Final = 3600.0


def clock(seconds: float, length: float = 0.0) -> str:
    """A time of day, with the date in a plot of more than 36 hours and with seconds in one below 10 minutes. UTC."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%m-%d %H:%M" if length > 36 * _HOUR else "%H:%M:%S" if length < _HOUR / 6 else "%H:%M")


def ticks(begin: float, length: float) -> list[str]:
    """Labels of the time axis, from its begin to its end."""
    return [clock(begin + length * index / (_TICKS - 1), length) for index in range(_TICKS)]


def area_plot(
    series: CardSeries,
    length: float,
    at: float,
    evictions: Iterable[EvictionMark],
    color: Callable[[str], str],
) -> Markup:
    """Cards of queues over time, stacked; `at`: seconds of the cursor. Evictions are vertical lines."""
    top = max(series.total, _peak(series), 1.0)
    parts = [
        f'<line class="grid" x1="0" x2="{WIDTH}" y1="{HEIGHT * part / 4:g}" y2="{HEIGHT * part / 4:g}"/>'
        for part in range(5)
    ]
    times = sorted({0.0, *(time for queue in series.queues for time in queue.times)})
    below = [0.0] * len(times)
    for queue in series.queues:
        amounts = _at(queue.times, queue.amounts, times)
        above = [low + amount for low, amount in zip(below, amounts, strict=True)]
        name = escape(escaped(queue.queue or "in use"))
        path = _area(times, below, above, length, top)
        parts.append(f'<path class="area {color(queue.queue)}" d="{path}"><title>{name}</title></path>')
        below = above
    if 0 < at < length:
        left = WIDTH * at / length
        parts.append(f'<rect class="future" x="{left:.1f}" y="0" width="{WIDTH - left:.1f}" height="{HEIGHT}"/>')
    for one in evictions:
        left = WIDTH * one.at / length if length else 0.0
        label = escape(escaped(f"{one.pod} evicted: {one.preemptor}"))
        parts.append(
            f'<line class="evict" x1="{left:.1f}" x2="{left:.1f}" y1="0" y2="{HEIGHT}"><title>{label}</title></line>'
        )
    if length:
        left = WIDTH * min(at, length) / length
        parts.append(f'<line class="cursor" x1="{left:.1f}" x2="{left:.1f}" y1="0" y2="{HEIGHT}"/>')
    label = escape(escaped(describe(series, at)))
    head = (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}">'
    )
    return Markup(head + "".join(parts) + "</svg>")  # noqa: S704 - texts are escaped


def describe(series: CardSeries, at: float) -> str:
    """The amounts at a time in words."""
    amounts = [(queue.queue or "in use", _at(queue.times, queue.amounts, [at])[0]) for queue in series.queues]
    shown = ", ".join(f"{name} {shown_amount(series.card, amount)}" for name, amount in amounts if amount)
    return f"{series.card} of {series.total:g}: {shown or 'none in use'}"


def _peak(series: CardSeries) -> float:
    times = sorted({time for queue in series.queues for time in queue.times})
    columns = [_at(queue.times, queue.amounts, times) for queue in series.queues]
    return max(map(sum, zip(*columns, strict=True)), default=0.0)


def _at(times: Sequence[float], amounts: Sequence[float], wanted: Sequence[float]) -> list[float]:
    """The amounts of a step function at ascending times."""
    found, position, current = [], 0, 0.0
    for moment in wanted:
        while position < len(times) and times[position] <= moment:
            current = amounts[position]
            position += 1
        found.append(current)
    return found


def _area(times: Sequence[float], below: Sequence[float], above: Sequence[float], length: float, top: float) -> str:
    """The path between two step functions, from left to right above and back below."""
    edges = [*times[1:], max(length, times[-1])]

    def point(moment: float, amount: float) -> str:
        x = WIDTH * moment / length if length else 0.0
        return f"{x:.1f} {HEIGHT * (1 - amount / top):.1f}"

    forth = [
        part for left, right, y in zip(times, edges, above, strict=True) for part in (point(left, y), point(right, y))
    ]
    back = [
        part for left, right, y in zip(times, edges, below, strict=True) for part in (point(left, y), point(right, y))
    ]
    return "M" + "L".join([*forth, *reversed(back)]) + "Z"


def life_bar(stages: Sequence[StagePeriod], span: Callable[[float], str]) -> Markup:
    """The stages of a job as parts of a bar."""
    length = sum(stage.seconds for stage in stages) or 1.0
    parts, left = [], 0.0
    for stage in stages:
        width = WIDTH * stage.seconds / length
        title = f"{stage.stage} {span(stage.seconds)}"
        parts.append(
            f'<rect class="st-{stage.stage}" x="{left:.1f}" y="0" width="{width:.1f}" height="20">'
            f"<title>{title}</title></rect>"
        )
        left += width
    label = escape(", ".join(f"{stage.stage} {span(stage.seconds)}" for stage in stages))
    head = f'<svg class="life" viewBox="0 0 {WIDTH} 20" preserveAspectRatio="none" role="img" aria-label="{label}">'
    return Markup(head + "".join(parts) + "</svg>")  # noqa: S704 - the parts are numbers and stages


def share_bar(used: float, limit: float, reserved: float, color: str) -> Markup:
    """Used and reserved parts of a limit behind a cell. Decoration: the cell has the figures."""
    whole = max(limit, used, 1e-9)
    width = WIDTH * min(1.0, used / whole)
    rest = min(WIDTH - width, WIDTH * reserved / whole)
    parts = [f'<rect class="fill {color}" x="0" y="0" width="{width:.1f}" height="10"/>']
    if rest > 0:
        parts.append(f'<rect class="reserved {color}" x="{width:.1f}" y="0" width="{rest:.1f}" height="10"/>')
    head = f'<svg class="share" viewBox="0 0 {WIDTH} 10" preserveAspectRatio="none" aria-hidden="true">'
    return Markup(head + "".join(parts) + "</svg>")  # noqa: S704 - numbers


#: Width and height of a card in pixels.
_CARD: Final = 26, 22


def card_box(box: CardBox, color: Callable[[str], str]) -> Markup:
    """A card with the parts of its tenants; terminating pods are hatched, an unavailable card is crossed out."""
    width, height = _CARD
    parts, left = [f'<rect class="idle" width="{width}" height="{height}" rx="4"/>'], 0.0
    titles = []
    for tenant in box.tenants:
        part = min(width - left, width * tenant.share)
        parts.append(f'<rect class="fill {color(tenant.queue)}" x="{left:.1f}" width="{part:.1f}" height="{height}"/>')
        if tenant.terminating:
            parts.append(f'<rect class="hatch" x="{left:.1f}" width="{part:.1f}" height="{height}"/>')
        left += part
        if left < width:
            parts.append(f'<line class="gap" x1="{left:.1f}" x2="{left:.1f}" y2="{height}"/>')
        titles.append(tenant_text(tenant))
    if not box.available:
        parts.append(f'<line class="cross" x2="{width}" y2="{height}"/>')
        titles.append("unavailable")
    title = escape(escaped("; ".join(titles) or "free"))
    head = f'<svg class="card" width="{width}" height="{height}" viewBox="0 0 {width} {height}" aria-hidden="true">'
    return Markup(f"{head}<title>{title}</title>{''.join(parts)}</svg>")  # noqa: S704 - texts are escaped


def tenant_text(tenant: Tenant) -> str:
    """`default/chat-1 of queue serving: memory 8 of 16, terminating`."""
    name = tenant.pod or "a pod of another namespace"
    of = f" of queue {tenant.queue}" if tenant.queue else ""
    more = [*filter(None, [tenant.text]), *["terminating"] * tenant.terminating]
    return f"{name}{of}{': ' if more else ''}{', '.join(more)}"
