"""Searches for victims that failed, and the changes since: such a search fails again until one of its inputs changes.

A search reads the preemptor, the books of its queue, the books of the victims' queues, and the nodes with their pods. A
record ends when a book has another version, and when a node changed on which pods of its class fit, victims counted in.
If no node had a plan, only the changed nodes can have one: they alone are examined, and the record stays when they have
none either. Quotas of the preemptor's queue give no node a plan: while they refuse none of its pods, and the victims
depend on no usage of the queue, the record outlives a change of its allocation version in the same way.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.backlog.queue_books import QueueBooks
    from capcard_sched.model.job import Job

#: The hook that decides on victims: in the queue of the preemptor, or in others.
EvictionHook: TypeAlias = Literal["preemptable", "reclaimable"]


class SearchVersion(NamedTuple):
    """The books that a search reads, compared by equality."""

    #: What decides on the pods of the preemptor's queue, without evictions.
    allocation: Hashable
    #: What decides on victims.
    evictions: Hashable


class SearchId(NamedTuple):
    """Preemptors with the same search for victims."""

    hook: EvictionHook
    queue: str
    #: Of the jobs.
    priority: int
    #: Class, contexts and priority of their pending pods; the key of a job with pods of several kinds.
    pods: Hashable


@dataclass(slots=True)
class FailedSearch:
    """One failed search."""

    #: Minimum number of pods that the failed searches requested.
    needed: int
    #: The version of the books at the search.
    version: SearchVersion
    #: The queues of possible victims in other queues, in the order in which they lose pods.
    ranks: Sequence[str]
    #: The pods that fit into free capacity.
    placed: int
    #: Whether some node had a plan, possible or not.
    is_planned: bool
    #: Whether a tier of plugins may have decided alone: more usage of the queue may then permit other victims.
    by_tiers: bool
    #: Whether victims were searched, for pods that no quota refused.
    within_quota: bool
    #: Rows of nodes with possible victims that changed since, and whether free capacity changed on others.
    rows: set[int] = field(default_factory=set)
    freed: bool = False


class RepeatedSearch(NamedTuple):
    """The result of a search on changed nodes: none has a plan."""

    placed: int
    by_tiers: bool
    within_quota: bool


class EvictionInputs(NamedTuple):
    """The books that searches of a hook read, at the start of an action."""

    #: Name of a preemptor's queue to the version of the books; None when plugins declare none.
    version: Callable[[str], SearchVersion | None]
    #: Names of the queues of possible victims in other queues to the version of their books.
    victims: Mapping[str, Hashable]
    #: Name of a preemptor's queue to their names in the order in which they lose pods.
    ranks: Callable[[str], Sequence[str]]
    #: Whether victims depend on the usage of the preemptor's queue or job.
    by_usage: bool
    #: Searches victims for a job on these rows only; None when it finds a plan.
    repeat: Callable[[Job, Sequence[int]], RepeatedSearch | None]


def search_id(hook: EvictionHook, job: Job, signatures: Iterable[PodSignature]) -> SearchId:
    """The id of a job with pending pods of these signatures."""
    found = {(signature.cls, tuple(signature.contexts.items())) for signature in signatures}
    priorities = {task.priority for task in job.pending.values()}
    alike = len(found) == len(priorities) == 1
    return SearchId(hook, job.queue, job.priority, (found.pop(), priorities.pop()) if alike else job.key)


class FailedSearches:
    """The failed searches of skipped jobs.

    B5 at 200 nodes and 400 gangs, one new pod: 2.6 ms, 4.0 where every search is repeated; one pod that ends: 5.5, 8.0.
    """

    def __init__(self, rows_of: Callable[[str], Iterable[int]], books: QueueBooks) -> None:
        """`rows_of` returns the rows of the nodes with pods of a queue, by name; `books`: those of skipped jobs."""
        self._rows_of = rows_of
        self._books = books
        self._records: dict[SearchId, FailedSearch] = {}
        #: Those of the running session, whose jobs are not skipped yet.
        self._fresh: dict[SearchId, FailedSearch] = {}
        #: The books of victims in the last action of a hook, and all books in the running session.
        self._victims: dict[EvictionHook, Mapping[str, Hashable]] = {}
        self._inputs: dict[EvictionHook, EvictionInputs] = {}

    def open(self) -> None:
        self._fresh.clear()
        self._inputs.clear()

    def begin(self, hook: EvictionHook, inputs: EvictionInputs) -> None:
        """Starts an action. Nodes change with the books of the queues of their pods."""
        before, now = self._victims.get(hook, {}), inputs.victims
        self._victims[hook], self._inputs[hook] = now, inputs
        if before == now or not any(search.hook == hook for search in self._records):
            return
        changed = [name for name in before.keys() | now.keys() if before.get(name) != now.get(name)]
        rows = {row for name in changed for row in self._rows_of(name)}
        self.note_rows((search for search in self._records if search.hook == hook), rows)

    def note(self, search: SearchId, needed: int, found: RepeatedSearch, *, is_planned: bool) -> None:
        """Records a failed search of the running action, unless its books have no version."""
        inputs = self._inputs.get(search.hook)
        version = None if inputs is None else inputs.version(search.queue)
        if inputs is None or version is None:
            return
        table = self._records if search in self._records else self._fresh
        known = table.get(search)
        if known is None or known.version != version or known.rows or known.freed:
            ranks = inputs.ranks(search.queue)
            table[search] = FailedSearch(needed, version, ranks, found.placed, is_planned, *found[1:])
            return
        known.needed = min(known.needed, needed)
        known.placed = max(known.placed, found.placed)
        known.is_planned |= is_planned
        known.by_tiers |= found.by_tiers
        known.within_quota &= found.within_quota

    def forget_fresh(self, hook: EvictionHook) -> None:
        """Drops the failed searches of the running action: it evicts."""
        self._fresh = {search: record for search, record in self._fresh.items() if search.hook != hook}

    def keep(self, search: SearchId) -> None:
        """Keeps the failed search of the session: the next sessions skip a job with it."""
        record = self._fresh.get(search)
        if record is not None:
            self._records[search] = record

    def drop(self, search: SearchId) -> None:
        """Drops the record of a search: none of its jobs is skipped, or its nodes are other ones."""
        self._records.pop(search, None)

    def note_rows(self, searches: Iterable[SearchId], rows: Iterable[int], *, freed: bool = False) -> None:
        """Records changed rows of the nodes that searches use; `freed`: others without possible victims changed."""
        rows = set(rows)
        for search in searches if rows or freed else ():
            record = self._records.get(search)
            if record is not None:
                record.rows |= rows
                record.freed |= freed

    def note_fresh_rows(self, rows: set[int]) -> None:
        """Records changed rows for the searches of the running session."""
        for record in self._fresh.values():
            record.rows |= rows

    def failing(
        self, search: SearchId, needs: Iterable[int] = (), sample: Callable[[int], Job | None] | None = None
    ) -> int | None:
        """The needed pods from which the search fails as before; None when it may succeed.

        `needs`: the pods that its jobs need; `sample` returns a job that needs as many, to examine the changed nodes
        with. Without it a change ends the record.
        """
        record, inputs = self._records.get(search), self._inputs.get(search.hook)
        if record is None or inputs is None:
            return None
        version = inputs.version(search.queue)
        is_moved = version is not None and version.allocation != record.version.allocation
        follows_usage = is_moved and (inputs.by_usage or not record.within_quota)
        if version is None or version.evictions != record.version.evictions or follows_usage:
            del self._records[search]
            return None
        ranks = inputs.ranks(search.queue)
        if ranks != record.ranks:  # nodes change with the order of the queues of their pods
            found_on = Counter(row for name in _reordered(record.ranks, ranks) for row in self._rows_of(name))
            record.rows.update(row for row, count in found_on.items() if count > 1)
            record.ranks = ranks
        if record.rows or record.freed or is_moved:
            needed = min((count for count in needs if count >= record.needed), default=None)
            if sample is None or needed is None:
                return None
            found, job = None, sample(needed)
            is_filled = record.within_quota and not (record.rows or is_moved or inputs.by_usage or record.is_planned)
            if is_filled and job is not None and self._books.is_short_of_nodes(job.key, version.allocation):
                record.freed = False  # pods on all free capacity, and victims searched for the next one: as before
                return record.needed
            if job is not None and not record.is_planned:
                found = inputs.repeat(job, sorted(record.rows))
            differs = found is None or found.within_quota != record.within_quota
            if found is None or differs or (inputs.by_usage and not _is_same(record, found)):
                del self._records[search]
                return None
            record.needed, record.placed, record.by_tiers = needed, found.placed, record.by_tiers or found.by_tiers
            record.version, record.rows, record.freed = version, set(), False
        return record.needed


def _reordered(before: Sequence[str], now: Sequence[str]) -> set[str]:
    """The names with other names before them than before; new and former names do not count."""
    common = set(before) & set(now)
    found: set[str] = set()
    apart: set[str] = set()
    pairs = ([name for name in names if name in common] for names in (before, now))
    for old, new in zip(*pairs, strict=True):
        if apart or old != new:
            found |= {old, new}
        apart ^= {old}
        apart ^= {new}
    return found


def _is_same(record: FailedSearch, found: RepeatedSearch) -> bool:
    """Whether unchanged nodes have no plan as before: with more usage of the queue, no plugin permits more victims."""
    more = found.placed > record.placed
    return found.placed == record.placed or (more and not (record.by_tiers or found.by_tiers))
