"""`--report`: the overview of a run as one file, with the plots of the pages, and without scripts and links."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from capcard_sched.cli.exit_codes import BadInputError

if TYPE_CHECKING:
    from pathlib import Path

    from capcard_sched.cli.sources.inputs import LoadedCluster
    from capcard_sched.ledger.usage_series import UsageOverTime
    from capcard_sched.web.history import History

#: A link; texts of objects are escaped and have none.
_LINK: Final = re.compile(r"<a [^>]*>(.*?)</a>", re.DOTALL)


def write_report(path: Path, found: LoadedCluster, label: str, history: History) -> None:
    """Write the overview of a cluster at its end. `label`: the input, for the footer. Raises BadInputError."""
    from capcard_sched.cli.web_files import cluster_of
    from capcard_sched.web.overview import overview

    view = overview(cluster_of(found, label, history), {})
    _write(path, "overview.html", view)


def write_usage(path: Path, found: UsageOverTime, since: str, label: str) -> None:
    """Write the page of a report of card-hours. Raises BadInputError."""
    from capcard_sched.web.usage import usage_page
    from capcard_sched.web.views import Moment

    view = usage_page(found, Moment(source=label, now=found.report.until), since)
    queues = {queue.queue for card in view.series for queue in card.queues}
    _write(path, "usage.html", replace(view, moment=replace(view.moment, queues=tuple(sorted(queues)))))


def _write(path: Path, template: str, view: object) -> None:
    from capcard_sched.web.render import render

    style = files("capcard_sched.web").joinpath("static", "page.css").read_text("utf-8")
    text = _LINK.sub(r"<span>\1</span>", render(template, view, path="/", query={}, style=style))
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise BadInputError(f"--report: {path}: {error.strerror or error}") from None
