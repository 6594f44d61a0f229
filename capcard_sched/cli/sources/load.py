"""Chooses the input of a reading verb, and loads its cluster."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from capcard_sched.cli.cache_client import FLAG
from capcard_sched.cli.exit_codes import BadInputError
from capcard_sched.cli.sources.inputs import ManifestInput, RecordedInput
from capcard_sched.cli.sources.live import LiveInput
from capcard_sched.gc import keep

if TYPE_CHECKING:
    from capcard_sched.cli.sources.held_cluster import HeldCluster
    from capcard_sched.cli.sources.inputs import Input, LoadedCluster
    from capcard_sched.cli.sources.source import Source

#: The cluster that this process holds: set in a cache, for the verb that it serves.
HELD: Final[ContextVar[HeldCluster | None]] = ContextVar("held_cluster", default=None)


class DeclinedError(BaseException):
    """The client of a cache is to run the verb itself. No error of a verb: each would print it."""


def load_cluster(source: Source, *, read_only: bool = False, namespace: str = "", jobs: bool = False) -> LoadedCluster:
    """Load the cluster. Raises BadInputError when the input, the connection or a response is invalid.

    `read_only`: run no actions over it, so that the core holds its present state only. `namespace`: the one to read
    where pods and PodGroups of all namespaces are not readable; "" for that of the kubeconfig's context. `jobs`: read
    the Jobs of a live cluster, too, and diagnose waiting jobs.
    """
    cluster = input_of(source, namespace, jobs=jobs).load(read_only=read_only, headlines=jobs)
    keep(cluster)
    return cluster


def input_of(source: Source, namespace: str = "", *, jobs: bool = False) -> Input:
    """The input that flags select; parameters as of `load_cluster`. Raises BadInputError."""
    if source.is_live:
        return live_input(source, namespace, jobs=jobs)
    leave_cache(source.cache, "-f and --recording read files")
    return ManifestInput(source) if source.recording is None else RecordedInput(source, source.recording)


def live_input(source: Source, namespace: str = "", *, jobs: bool = False) -> LiveInput:
    """A live cluster, from the memory of this process where it holds it; parameters as of `load_cluster`."""
    held = HELD.get()
    if held is None:
        return LiveInput(source, namespace, jobs=jobs)
    from capcard_sched.cli.sources.held_cluster import HeldInput

    return HeldInput(source, held, namespace, jobs=jobs)


def leave_cache(cache: str | None, reason: str) -> None:
    """Of a verb that no cache serves: raises BadInputError with the flag, and DeclinedError in a cache."""
    if cache:
        raise BadInputError(f"{FLAG}: answers about a live cluster as it is; {reason}")
    if HELD.get() is not None:
        raise DeclinedError
