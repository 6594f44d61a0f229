"""The base class of all plugins and the records that the framework and their hooks exchange."""

from __future__ import annotations

from enum import Flag, IntEnum, auto
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
    """For plugins without arguments."""


class Reads(Flag):
    """The facts besides jobs, queues and nodes that a plugin or an action reads: their changes open sessions."""

    #: `session.now`: sessions run on an unchanged cluster, too, and attempt every waiting job.
    CLOCK = auto()
    #: Fields of `Changes`.
    QUOTAS = auto()
    BUDGETS = auto()
    CARD_BUDGETS = auto()
    USAGE = auto()
    NUMA = auto()
    CONFIG_MAPS = auto()
    NAMESPACES = auto()
    #: The plugin's signatures and node hooks read only the tree of HyperNodes and the placed pods of the job: the
    #: search for a HyperNode skips them.
    TREE = auto()


class Sample(NamedTuple):
    """One value of a metric series, without the prefix `volcano_`."""

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
    #: The reason for not admitting one more; None when `count` covers the whole run.
    refusal: Refusal | None = None
    alternatives: Rows | None = None
    alternative_limits: tuple[int, ...] = ()
    #: Tasks that may be placed before the hook must be called again.
    at_once: int = 2**31


class UsableCards(NamedTuple):
    """The cards with free quota of which the devices of a pod's claims are one."""

    names: tuple[str, ...]
    #: The thousandths of each that the pod may get, if their number depends on the devices that are found.
    limits: tuple[tuple[str, int], ...] = ()
    #: Further cards that the pod gets beside one of `names`.
    others: tuple[str, ...] = ()


class OutsideError(Exception):
    """A hook depends on an external service that failed or refused; the current object is skipped for now.

    Contained as any other exception, but not counted as a defect of the scheduler.
    """


class VictimDecision(NamedTuple):
    """A result of `preemptable` and `reclaimable` that protects candidates in every tier.

    Candidates it does not protect are left to the other plugins, or are the plugin's `victims` when it names some.
    """

    #: uid of a protected candidate to the displayed cause ("" is the plugin's name); None protects all.
    protected: Mapping[str, str] | None
    #: The plugin's vote, as in a plain result; None abstains.
    victims: Sequence[Task] | None = None
    #: No tier decides alone: victims must be named by every plugin that votes.
    unanimous: bool = False
    #: uid of a candidate that is not among `victims` to the displayed cause; others have the plugin's name.
    causes: Mapping[str, str] | None = None


class Protection(IntEnum):
    """How far a plugin protects all pods of a job from a kind of preemptors."""

    NONE = 0
    #: Its `preemptable` or `reclaimable` never names one of them as a victim.
    IN_TIER = 1
    #: It protects them in every tier.
    ALWAYS = 2


#: No pod may be evicted for this task.
VETO = VictimDecision(None)


class Placement(NamedTuple):
    """Tasks of one class and one job that were placed on, or removed from, nodes together.

    With generated claims they may be of classes that differ in the names of these alone (`TaskClass.alike`): `cls` is
    that of the first one.

    `nodes[i]` is the node of `tasks[i]`. When `on_allocate` runs the tasks already have their node and status
    (ALLOCATED, PIPELINED, or the former one for an undone eviction); when `on_deallocate` runs they still have it.
    """

    job: Job
    cls: TaskClass
    tasks: list[Task]
    nodes: list[Node]


class Plugin:
    """One policy. Subclasses define any of the methods listed in `framework.api.hooks.HOOKS`.

    An instance lives as long as its scheduler-conf. `open` runs at the start of every session and gets the changes
    (`session.changed`), so that a plugin maintains its sums instead of rebuilding them.
    """

    #: The name in the scheduler-conf.
    name: ClassVar[str] = ""
    #: Arguments as a frozen struct; `msgspec.field(name=...)` gives the key in the scheduler-conf.
    Arguments: ClassVar[type[msgspec.Struct]] = NoArguments
    #: Classes that implement hooks of the plugin, one subject each; `setup` sets `parts` to their instances.
    Parts: ClassVar[tuple[type, ...]] = ()
    #: The facts that the plugin reads besides jobs, queues and nodes; `next_wakeup` is a cheaper CLOCK.
    reads: ClassVar[Reads] = Reads(0)
    #: Whether its victims depend on the usage of the preemptor's queue or job: more usage permits no further victim.
    victims_by_usage: ClassVar[bool] = True
    #: Whether it allocates ResourceClaims: it implements `bind_claims`.
    supports_claims: bool = False
    #: Switch to a note that `validate` shows when a scheduler-conf turns it off: a difference from Volcano.
    switch_notes: ClassVar[Mapping[str, str]] = {}

    @property
    def config_maps(self) -> frozenset[tuple[str, str]]:
        """Namespace and name of the ConfigMaps that the plugin reads from `session.config_maps`."""
        return frozenset()

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        self.arguments = self.Arguments() if arguments is None else arguments
        #: The `enableHierarchy` switch of the plugin's entry.
        self.hierarchy = hierarchy
        self.parts: tuple[object, ...] = ()
        self.setup()

    def setup(self) -> None:
        """Creates the attributes of an instance, from `arguments` and `hierarchy`."""

    @classmethod
    def implements(cls, hook: str) -> bool:
        """Whether the plugin or one of its parts has a method of that name."""
        return any(hasattr(owner, hook) for owner in (cls, *cls.Parts))

    def method(self, hook: str) -> Any:
        """The method of the plugin, or of one of its parts, of that name; None without one."""
        found = (getattr(owner, hook, None) for owner in (self, *self.parts))
        return next((method for method in found if method is not None), None)

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> msgspec.Struct:
        """Decodes the plugin's `arguments:`; called when the scheduler-conf is loaded.

        This default reads the fields of `Arguments`: bounds come from `Annotated[float, msgspec.Meta(ge=1)]`, choices
        from `Literal`, and `framework.api.arguments.LENIENT` marks a map whose invalid entries are dropped. A plugin
        with keys made of a prefix and a name overrides it: `problems.decode(cls.Arguments, raw, handled=keys)` for the
        fields, `problems.read(raw, key, int, default)` for the others, `problems.warning(key, ...)` for rules of its
        own. It must not raise; null is absent.
        """
        return problems.decode(cls.Arguments, raw)
