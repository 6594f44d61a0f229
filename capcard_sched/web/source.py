"""The port between the server and the clusters: views of pages, and changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from capcard_sched.model.trials import InsightPart
    from capcard_sched.web.pages import Page


class UnavailableError(Exception):
    """The cluster is not read yet, or cannot be read; the text is shown."""


class PageSource(Protocol):
    """Clusters at moments."""

    @property
    def is_ready(self) -> bool:
        """Whether the cluster is read."""

    async def view(self, page: Page, query: Mapping[str, str], namespaces: frozenset[str] | None) -> InsightPart:
        """The view of a page at the moment `at` of the query, of jobs in some namespaces; None for all.

        Raises LookupError, ValueError and UnavailableError.
        """

    async def prepare(self) -> None:
        """Make the views of likely requests, where they stay valid."""

    def changes(self) -> AsyncIterator[tuple[str, str]]:
        """Events of a live cluster with their data, for ever: `change`, `beat`, `stale`."""
