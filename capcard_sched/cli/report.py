"""`--report`: the overview of a run as one file, with the plots of the pages, and without scripts and links."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from capcard_sched.cli.inputs import BadInputError

if TYPE_CHECKING:
    from pathlib import Path

    from capcard_sched.cli.cluster_source import ClusterSource, Source, SourceState
    from capcard_sched.web.history import History

#: A link; texts of objects are escaped and have none.
_LINK: Final = re.compile(r"<a [^>]*>(.*?)</a>", re.DOTALL)


def write_report(
    path: Path, found: ClusterSource, source: Source, state: SourceState | None, label: str, history: History
) -> None:
    """Write the overview of a cluster at its end. `label`: the input, for the footer. Raises BadInputError."""
    from capcard_sched.cli.web_files import cluster_of, once
    from capcard_sched.web.overview import overview
    from capcard_sched.web.render import render

    headlines = once(lambda: found.headlines.read(found.now) if found.headlines is not None else {})
    view = overview(cluster_of(found, source, state, label, headlines, history), {})
    style = files("capcard_sched.web").joinpath("static", "page.css").read_text("utf-8")
    text = _LINK.sub(r"<span>\1</span>", render("overview.html", view, path="/", query={}, style=style))
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise BadInputError(f"--report: {path}: {error.strerror or error}") from None
