"""The table of pages: address, template, and the function from a cluster to the view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.web import views
from capcard_sched.web.job_page import job_view
from capcard_sched.web.job_rows import job_list
from capcard_sched.web.ledger_documents import LedgerHistory, LedgerUsage, ledger_history, ledger_usage
from capcard_sched.web.nodes import node_list
from capcard_sched.web.overview import overview
from capcard_sched.web.quotas import queue_list, queue_view
from capcard_sched.web.usage import usage_view
from capcard_sched.web.what_if import what_if_view

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capcard_sched.model.trials import InsightPart
    from capcard_sched.web.cluster import Cluster


class Page(NamedTuple):
    """One page. Its view is also the document under /api/v1."""

    #: A route of aiohttp; its variables are added to the query. "" for a document without a page.
    address: str
    #: The same below /api/v1.
    document: str
    #: "" for a document without a page.
    template: str
    #: Raises LookupError for an unknown object and ValueError for an invalid query.
    view: Callable[[Cluster, Mapping[str, str]], InsightPart]
    kind: type[InsightPart]
    #: Parameters of the query other than `at`; others are refused.
    query: frozenset[str] = frozenset()
    #: Runs trials, or reads a database: others need not wait for it.
    is_slow: bool = False
    #: Reads the ledger, which is written while the cluster stays as it is.
    is_recorded: bool = False


OVERVIEW: Final = Page("/", "/overview", "overview.html", overview, views.Overview)
#: Pages that most viewers see first: their views are made before the first request.
FIRST_ADDRESSES: Final = ("/", "/jobs", "/nodes", "/queues")
USAGE: Final = Page(
    "/usage",
    "/usage",
    "usage.html",
    usage_view,
    views.UsageView,
    frozenset({"since", "by"}),
    is_slow=True,
    is_recorded=True,
)
PAGES: Final = (
    OVERVIEW,
    Page("/queues", "/queues", "queues.html", queue_list, views.QueueList),
    Page("/queues/{name}", "/queues/{name}", "queue.html", queue_view, views.QueueView),
    Page(
        "/jobs",
        "/jobs",
        "jobs.html",
        job_list,
        views.JobList,
        frozenset({"queue", "namespace", "stage", "text", "sort", "page"}),
    ),
    Page(
        "/jobs/{namespace}/{name}",
        "/jobs/{namespace}/{name}",
        "job.html",
        job_view,
        views.JobView,
        frozenset({"kind", "fix"}),
        is_slow=True,
    ),
    Page("/nodes", "/nodes", "nodes.html", node_list, views.NodeList, frozenset({"card", "queue", "text", "page"})),
    USAGE,
    Page(
        "", "/ledger/usage", "", ledger_usage, LedgerUsage, frozenset({"since", "by"}), is_slow=True, is_recorded=True
    ),
    Page(
        "",
        "/ledger/history",
        "",
        ledger_history,
        LedgerHistory,
        frozenset({"since", "name", "namespace"}),
        is_slow=True,
        is_recorded=True,
    ),
    Page(
        "/what-if",
        "/what-if",
        "what_if.html",
        what_if_view,
        views.WhatIfView,
        frozenset({"quota", "drain", "add-nodes", "conf"}),
        is_slow=True,
    ),
)
