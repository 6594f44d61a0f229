"""The cluster of a page: a core that has run a session, its objects, and the history that leads to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from capcard_sched.web.access import is_visible_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capcard_sched.framework.core import Core
    from capcard_sched.insight.diagnosis.headlines import Headline
    from capcard_sched.insight.sources.object_view import ObjectView
    from capcard_sched.model.diagnosis import ExpectedStart, JobDiagnosis
    from capcard_sched.web.changes import Comparison, ProposedChanges
    from capcard_sched.web.history import History

T = TypeVar("T")


class DiagnosisRequest(NamedTuple):
    """A job, and the extent of its diagnosis."""

    namespace: str
    #: `kind/name`, or a name of any kind.
    name: str
    #: Search fixes, and estimate the start.
    fix: bool
    start: bool
    #: Try the job on copies of the cluster; else the diagnosis is that of the session of all jobs.
    tries: bool


@dataclass(frozen=True)
class Cluster:
    """One moment of a cluster. `now` in Unix seconds."""

    core: Core
    objects: ObjectView
    now: float
    #: The input, for the header: "config/examples/tidal", the address of an API server.
    source: str
    is_live: bool
    #: Required resources that are not readable.
    unreadable: tuple[str, ...]
    #: Warnings of the input, and of the scheduler about queues.
    warnings: tuple[str, ...]
    #: Stage and cause of each waiting job. Computed in a copy of the process.
    headlines: Callable[[], Mapping[str, Headline]]
    #: Runs one session that attempts every job; changes the core.
    session: Callable[[], object]
    #: When the job of a diagnosis starts; None for one that does not wait, and in a large cluster unless it is wanted.
    expected_start: Callable[[JobDiagnosis, bool], ExpectedStart | None]
    #: The effect of changes. Runs for long: called in a copy of the process.
    what_if: Callable[[ProposedChanges], Comparison]
    #: Usage over time; None for a source without a past.
    history: History | None = None
    #: Database of the ledger: a file, or a URL of PostgreSQL; "" without one.
    ledger: str = ""
    #: Namespaces whose jobs are visible; None for all.
    namespaces: frozenset[str] | None = None
    #: Diagnoses a job after a session that attempted every job, where such a copy is at hand.
    attempted: Callable[[DiagnosisRequest], JobDiagnosis] | None = None
    #: Parts that several views have in common, by name; of all viewers.
    parts: dict[str, Any] = field(default_factory=dict)

    def may_see(self, namespace: str) -> bool:
        """Whether the viewer may see the jobs and pods of a namespace."""
        return self.namespaces is None or namespace in self.namespaces

    def may_see_queue(self, queue: str) -> bool:
        """Whether the viewer may see a queue."""
        return is_visible_queue(queue, self.namespaces)

    def part(self, name: str, make: Callable[[], T]) -> T:
        """A part of the cluster that is the same for every viewer, made with its first use."""
        if name not in self.parts:
            self.parts[name] = make()
        found: T = self.parts[name]
        return found
