"""Renders a view as HTML. Every text of an object is escaped, control and direction characters included."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from capcard_sched import __version__
from capcard_sched.model.diagnosis import STAGES
from capcard_sched.model.quantity import shown_amount
from capcard_sched.model.quoting import escaped, plural
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.model.timestamps import parse_timestamp, span
from capcard_sched.reports.explain import describe_start
from capcard_sched.web import plots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.web.views import JobRow, Moment, NodeRow, Overview, QueueList, QuotaRow

#: Colors of queues in a theme.
_COLORS: Final = 8
#: Title and address of each page, in the order of the navigation.
NAVIGATION: Final = (
    ("Overview", "/"),
    ("Queues", "/queues"),
    ("Jobs", "/jobs"),
    ("Nodes", "/nodes"),
    ("Usage", "/usage"),
    ("What if", "/what-if"),
)


def _finalize(value: Any) -> Any:
    """A value of an expression: texts of objects cannot have control characters."""
    return escaped(value, lines=True) if isinstance(value, str) and not isinstance(value, Markup) else value


_environment: Final = Environment(
    loader=PackageLoader("capcard_sched.web"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_finalize,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, view: Any, *, path: str, query: Mapping[str, str], style: str = "") -> str:
    """The HTML of a view. `path` and `query`: of the request; `style`: of a file on its own, which has no links."""
    moment: Moment | None = getattr(view, "moment", None)
    at = query.get("at", "")
    tools = {
        "version": __version__,
        "report": bool(style),
        "stages": STAGES,
        "plots": plots,
        "color": color_of(moment),
        "link": _linker(at),
        "job_link": _job_linker(at),
        "tenants": _tenants,
        "tenant_queues": _tenant_queues,
        "heat_rows": heat_rows,
        "heat_cards": heat_cards,
        "amount": shown_amount,
        "span": lambda seconds: "\u2013" if seconds is None else span(seconds),
        "plural": plural,
        "seconds_of": parse_timestamp,
        "describe_start": describe_start,
    }
    page = _environment.get_template(template)
    given = {
        "view": view,
        "at": at,
        "moment": moment,
        "path": path,
        "query": query,
        "navigation": NAVIGATION,
        "style": Markup(style),  # noqa: S704 - our file
    }
    return page.render(**given, **tools, ctx=tools)


def heat_rows(rows: Iterable[QuotaRow]) -> list[QuotaRow]:
    """The queues with quotas or jobs; `root` and the default queue without any are left out."""
    return [row for row in rows if row.jobs or any(cell.quota for cell in (*row.cells, *row.resources))]


def heat_cards(view: Overview | QueueList) -> list[str]:
    """The columns: cards and device resources that these queues use or limit."""
    cells = [cell for row in heat_rows(view.queues) for cell in (*row.cells, *row.resources)]
    used = {cell.card for cell in cells if cell.quota or cell.used or cell.reserved}
    return sorted(used - {CPU, MEMORY})


def _tenant_queues(rows: Iterable[NodeRow]) -> list[str]:
    """The queues of the pods on nodes."""
    return sorted(
        {one.queue for row in rows for cards in row.cards for box in cards.boxes for one in box.tenants if one.queue}
    )


def color_of(moment: Moment | None) -> Callable[[str], str]:
    """The class of the color of a queue."""
    known = {} if moment is None else {name: index for index, name in enumerate(moment.queues)}

    def color(queue: str) -> str:
        return f"q{known[queue] % _COLORS}" if queue in known else "qx"

    return color


def _linker(at: str) -> Callable[..., str]:
    """Addresses of pages at the moment of this one."""

    def link(*parts: str, **query: str) -> str:
        path = "/" + "/".join(quote(part, safe="") for part in parts)
        given = {name: value for name, value in ({"at": at} | query).items() if value}
        return f"{path}?{urlencode(given)}" if given else path

    return link


def _job_linker(at: str) -> Callable[[JobRow], str]:
    link = _linker(at)

    def job_link(row: JobRow) -> str:
        return link("jobs", row.namespace, row.name, kind="" if row.kind == "vcjob" else row.kind)

    return job_link


def _tenants(row: NodeRow) -> list[tuple[str, str, float, bool]]:
    """The workloads on the cards of a node: workload, queue, cards or parts of them, whether some pod terminates."""
    sums: Counter[tuple[str, str]] = Counter()
    terminating = set()
    for cards in row.cards:
        for box in cards.boxes:
            for one in box.tenants:
                key = one.workload or one.pod, one.queue
                sums[key] += one.share  # type: ignore[assignment]
                if one.terminating:
                    terminating.add(key)
    return [(name, queue, amount, (name, queue) in terminating) for (name, queue), amount in sorted(sums.items())]
