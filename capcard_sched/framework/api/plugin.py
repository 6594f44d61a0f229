"""The base of all plugins and the small messages that pass between the framework and their hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from capcard_sched.framework.api.node_view import Rows
from capcard_sched.model.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.task_class import TaskClass


class NoArguments(msgspec.Struct, frozen=True):
    """For plugins that take none."""


class Sample(NamedTuple):
    """One series value of a metric row (without the `volcano_` prefix)."""

    name: str
    labels: dict[str, str]
    value: float


class Grant(msgspec.Struct, frozen=True):
    """The number of tasks of a run that a quota admits, one after the other.

    `alternatives` (intp [nodes of the session]) holds the alternative that a placement on each row uses, -1 for none.
    At most `alternative_limits[alternative]` tasks take an alternative before the hook must be called again. A plugin
    without alternatives leaves both empty.
    """

    count: int
    #: Why not one more; None when `count` is everything that was asked for.
    refusal: Refusal | None = None
    alternatives: Rows | None = None
    alternative_limits: tuple[int, ...] = ()


class OutsideError(Exception):
    """Raised by a hook whose question goes to somebody else, who failed or refuses: what is at hand is left for now.

    Contained as any other exception is, but it is no defect of the scheduler.
    """


class VictimDecision(NamedTuple):
    """An answer of `preemptable` and `reclaimable` that protects in every tier, wherever the plugin stands (W-10).

    Candidates it does not protect are left to the others, or are the plugin's `victims` when it names some.
    """

    #: uid of a protected candidate to the cause shown to people ("" is the plugin's name); None protects all.
    protected: Mapping[str, str] | None
    #: The plugin's vote, as a plain answer would be; None abstains.
    victims: Sequence[Task] | None = None
    #: No tier decides alone: only who is named by every plugin that votes may go.
    unanimous: bool = False


#: Nobody may be evicted for this task.
VETO = VictimDecision(None)


class Placement(NamedTuple):
    """Tasks of one class and one job that were put on, or taken off, nodes together.

    `nodes[i]` is the node of `tasks[i]`. When `on_allocate` runs the tasks already have their node and status
    (ALLOCATED, PIPELINED, or the former one for an eviction undone); when `on_deallocate` runs they still have it.
    """

    job: Job
    cls: TaskClass
    tasks: list[Task]
    nodes: list[Node]


class Plugin:
    """One policy. Subclasses define any of the methods listed in `framework.api.hooks.HOOKS`.

    An instance lives as long as the scheduler-conf that made it; `open` is called at the start of every session and
    is told what changed (`session.changed`), so that sums can be kept instead of rebuilt.
    """

    #: The name in the scheduler-conf.
    name: ClassVar[str] = ""
    #: Arguments as a frozen struct; field names (`msgspec.field(name=...)`) are the keys users write.
    Arguments: ClassVar[type[msgspec.Struct]] = NoArguments
    #: True when answers depend on `session.now`: then an unchanged cluster still needs sessions.
    time_dependent: ClassVar[bool] = False
    #: Further facts whose change is a reason for a session: of `Dirty` `quotas`, `budgets`, `usage`, `numa`.
    wakes_on: ClassVar[frozenset[str]] = frozenset()
    #: True when `task_context`, `domain_bound` and `batch_node_order` go by the tree of HyperNodes and by where the job
    #: stands, nothing else. Whether a job fits under a HyperNode is then found out without asking the plugin.
    follows_tree: ClassVar[bool] = False

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        self.arguments = self.Arguments() if arguments is None else arguments
        #: The `enableHierarchy` switch of the plugin's entry.
        self.hierarchy = hierarchy

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> msgspec.Struct:
        """Arguments out of what the user wrote under `arguments:`; called when the scheduler-conf is loaded.

        This default reads the fields of `Arguments`: bounds come from `Annotated[float, msgspec.Meta(ge=1)]`, choices
        from `Literal`, and `framework.api.arguments.LENIENT` marks a map whose wrong entries are dropped. A plugin with
        keys made of a prefix and a name overrides it: `problems.decode(cls.Arguments, raw, handled=keys)` for the
        fields, `problems.read(raw, key, int, default)` for the others, `problems.warning(key, ...)` for rules of its
        own. It must not raise; null is absent.
        """
        return problems.decode(cls.Arguments, raw)
