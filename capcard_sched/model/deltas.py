"""Facts that come in: what changed in the cluster, as immutable messages."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from capcard_sched.model.objects import NodeObject, PodGroupObject, PodObject, PriorityClassObject, QueueObject


class NodeChanged(msgspec.Struct, frozen=True):
    """A node was added or updated."""

    node: NodeObject


class NodeGone(msgspec.Struct, frozen=True):
    """A node was deleted."""

    name: str


class PodChanged(msgspec.Struct, frozen=True):
    """A pod was added or updated. A new uid under a known name replaces the old pod."""

    pod: PodObject


class PodGone(msgspec.Struct, frozen=True):
    """A pod was deleted. An empty uid means whichever pod has the name."""

    namespace: str
    name: str
    uid: str = ""


class PodGroupChanged(msgspec.Struct, frozen=True):
    """A PodGroup was added or updated."""

    group: PodGroupObject


class PodGroupGone(msgspec.Struct, frozen=True):
    """A PodGroup was deleted."""

    namespace: str
    name: str
    uid: str = ""


class QueueChanged(msgspec.Struct, frozen=True):
    """A queue was added or updated."""

    queue: QueueObject


class QueueGone(msgspec.Struct, frozen=True):
    """A queue was deleted."""

    name: str


class PriorityClassChanged(msgspec.Struct, frozen=True):
    """A PriorityClass was added or updated."""

    priority_class: PriorityClassObject


class PriorityClassGone(msgspec.Struct, frozen=True):
    """A PriorityClass was deleted."""

    name: str


class NamespaceChanged(msgspec.Struct, frozen=True):
    """A namespace was added, or its labels changed."""

    name: str
    labels: dict[str, str]


class NamespaceGone(msgspec.Struct, frozen=True):
    """A namespace was deleted."""

    name: str


class BindFailed(msgspec.Struct, frozen=True):
    """The API server refused a binding: the task pends again and others go on.

    With `retry_after` (seconds) above 0 the task is left alone until a `BindRetry` says that it may try again.
    """

    namespace: str
    name: str
    uid: str
    message: str
    retry_after: float = 0.0


class BindRetry(msgspec.Struct, frozen=True):
    """A pod that was left alone after a refused binding may be placed again."""

    namespace: str
    name: str
    uid: str


class Takeover(msgspec.Struct, frozen=True):
    """This scheduler begins to lead, and what is known is what the API server holds.

    Bindings and evictions decided earlier that have not shown will not come; tasks left alone may be tried.
    """


class EvictFailed(msgspec.Struct, frozen=True):
    """The API server refused an eviction: the task keeps its former status."""

    namespace: str
    name: str
    uid: str
    message: str


Delta: TypeAlias = (
    NodeChanged
    | NodeGone
    | PodChanged
    | PodGone
    | PodGroupChanged
    | PodGroupGone
    | QueueChanged
    | QueueGone
    | PriorityClassChanged
    | PriorityClassGone
    | NamespaceChanged
    | NamespaceGone
    | BindFailed
    | BindRetry
    | Takeover
    | EvictFailed
)
