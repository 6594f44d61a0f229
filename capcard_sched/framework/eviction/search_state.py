"""The searches of one action, and what failed in them: read again by later pods, and by later sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.framework.backlog.failed_searches import RepeatedSearch, search_id
from capcard_sched.framework.eviction.search import VictimSearch

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection, Iterable, Sequence

    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.eviction.scope import WithinQueue
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue

    #: Signature, key of the scope, job and pod priority: preemptors that share a search.
    SearchKey = tuple[PodSignature, tuple[str, str], int, int]


class SearchFailure(NamedTuple):
    """The last failure of a search."""

    commits: int
    #: The fewest missing pods for which it failed.
    missing: int
    #: Whether nodes were searched; False: a quota or a check of the pod itself refused.
    was_searched: bool


class SearchState:
    """The searches of one action within one scope, and the number of its commits, which end what is known."""

    def __init__(self, session: Session, scope: WithinQueue, rows: Sequence[int] | None) -> None:
        """`rows`: rows of nodes, ascending, with the only possible plans; None: all."""
        self._session = session
        self._scope = scope
        self._rows = rows
        self._commits = 0
        self._searches: dict[SearchKey, VictimSearch] = {}
        self._failures: dict[SearchKey, SearchFailure] = {}
        #: Searches used since the last statement ended.
        self._used: set[VictimSearch] = set()
        #: Searches of pods that a quota refused.
        self._over_quota: set[SearchKey] = set()
        #: The number of commits before the last report of a search, and the report.
        self._reports: dict[SearchKey, tuple[int, Counter[str], int]] = {}

    def key(self, queue: Queue, job: Job, task: Task) -> SearchKey:
        signature = self._session.engine.signature(queue, task)
        return signature, self._scope.key(job), job.priority, task.priority

    def search(self, key: SearchKey, queue: Queue, task: Task, *, over_quota: bool) -> VictimSearch:
        """The search of a key, begun at its first use. `over_quota`: as of `VictimSearch`."""
        search = self._searches.get(key)
        if search is None:
            search = VictimSearch(
                self._session, self._scope, key[0], queue, task, over_quota=over_quota, rows=self._rows
            )
            self._searches[key] = search
        self._used.add(search)
        return search

    # --- statements -------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Ends a statement with its evictions."""
        self._commits += 1
        self.end_statement(undone=False)

    def end_statement(self, *, undone: bool) -> None:
        """Ends a statement; when it was undone, its rows return to the searches."""
        for search in self._used:
            search.end_statement(undone=undone)
        self._used.clear()

    # --- failures ---------------------------------------------------------------------------------------------------

    def note_over_quota(self, key: SearchKey) -> None:
        self._over_quota.add(key)

    def note_failure(self, key: SearchKey, missing: int, *, was_searched: bool) -> None:
        """Records that the search fails for this number of missing pods, until the next commit."""
        if key in self._searches:
            self._failures[key] = SearchFailure(self._commits, missing, was_searched)

    def failure(self, key: SearchKey, missing: int) -> SearchFailure | None:
        """The failure since the last commit for this number of missing pods or fewer; None without one."""
        known = self._failures.get(key)
        return known if known is not None and known.commits == self._commits and missing >= known.missing else None

    def remember(self, job: Job, failed: Collection[SearchKey], needed: int, placed: int, *, searched: bool) -> None:
        """Records an undone attempt for the next sessions, unless it read more than the records compare."""
        session, hook = self._session, self._scope.hook
        if self._scope.singly or session.results.evictions or session.engine.confined or (placed and not failed):
            return
        signatures = session.pending_signatures(job)
        if not all(map(session.engine.reads_amounts_only, signatures)):
            return
        searches = [search for key in failed if (search := self._searches.get(key)) is not None]
        if hook == "reclaimable" and any("would-take-back" in search.plans.obstacles() for search in searches):
            return  # the books of the victims' queues were read as those of a preemptor
        found = search_id(hook, job, signatures)
        # A quota may leave free capacity: which nodes have it then follows from all nodes.
        is_over = not self._over_quota.isdisjoint(failed)
        is_partial = (placed > 0 and is_over) or found.pods == job.key
        result = RepeatedSearch(placed, _by_tiers(searches), searched and not is_over)
        session.failed_attempts.searches.note(found, needed, result, is_planned=is_partial or _is_planned(searches))

    def repeated(self, placed: int, *, was_searched: bool) -> RepeatedSearch | None:
        """The result of all searches together. None when one of the rows may have a plan."""
        searches = self._searches.values()
        if _is_planned(searches) or (placed and self._over_quota):
            return None
        return RepeatedSearch(placed, _by_tiers(searches), was_searched and not self._over_quota)

    def report(self, key: SearchKey, task: Task) -> tuple[Counter[str], int] | None:
        """As `VictimSearch.report`; None when a quota or a check of the pod itself refuses every pod of the key."""
        search = self._searches.get(key)
        if search is None:
            return None
        known = self._reports.get(key)
        if known is None or known[0] != self._commits:
            known = self._reports[key] = self._commits, *search.report(task)
        return known[1:]


def _is_planned(searches: Iterable[VictimSearch]) -> bool:
    return any(search.is_planned for search in searches)


def _by_tiers(searches: Iterable[VictimSearch]) -> bool:
    return any(search.by_tiers for search in searches)
