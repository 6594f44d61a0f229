"""A scenario: the initial objects of a run and its timeline; the settings of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS, CardLabels
from capcard_sched.model.group_affinity import AFFINITY_FIELD, AFFINITY_PLUGIN
from capcard_sched.model.kinds import KIND_BY_NAME
from capcard_sched.model.quoting import plural
from capcard_sched.simulation.clock import SECOND
from capcard_sched.simulation.kinds import (
    SCENARIO,
    SIMULATION_API,
    creation_rank,
)
from capcard_sched.simulation.store import display_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from capcard_sched.controllers.objects import JsonObject

Verb: TypeAlias = Literal["create", "delete", "patch"]
VERBS: tuple[Verb, ...] = get_args(Verb)
_SHOWN_ERRORS = 20
DEFAULT_SCHEDULERS = ("capcard-sched", "volcano")


class SimulationOptions(NamedTuple):
    """Settings of a run. Times in microseconds."""

    scheduler_names: tuple[str, ...] = DEFAULT_SCHEDULERS
    default_queue: str = "default"
    schedule_period: int = SECOND
    #: Microseconds; None: until the run has settled.
    until: int | None = None
    #: Unix seconds, wall clock at the start of the program; the start of the run when None. Handshakes in the input are
    #: judged by it.
    started: float | None = None
    #: Microseconds: the time at which the objects of the scenario are as given, and of the first session.
    begin: int = 0
    #: Wake-ups in a row that only retry admitted jobs (`inqueueTimeoutSeconds`) which a run without `until` follows
    #: once nothing else is to come.
    retries: int = 0
    #: Those of the scheduler-conf: the cards that pods hold, for CardBudgets.
    card_labels: CardLabels = DEFAULT_CARD_LABELS
    #: Names of the plugins of the scheduler-conf: fields that one of them reads have an effect.
    plugins: AbstractSet[str] = frozenset()


class InputError(ValueError):
    """The input cannot be simulated. `problems` are messages that name file, document, object and field."""

    def __init__(self, problems: Iterable[object]) -> None:
        self.problems = tuple(map(str, problems))
        lines = list(self.problems[:_SHOWN_ERRORS])
        if len(self.problems) > _SHOWN_ERRORS:
            lines.append(f"... and {plural(len(self.problems) - _SHOWN_ERRORS, 'more problem')}")
        super().__init__("\n".join(lines))


class Origin(NamedTuple):
    """The position of an object in the input."""

    source: str
    #: Of the document, counted from 1; 0 for the whole file.
    number: int
    #: Path inside the document: "" or `items[3]` or `spec.operations[2].create`.
    place: str = ""
    #: The Scenario of an operation.
    holder: str = ""

    def __str__(self) -> str:
        number = f"document {self.number}" if self.number else ""
        return ": ".join(filter(None, (self.source, number, self.holder, self.place)))

    def inside(self, place: str) -> Origin:
        return self._replace(place=f"{self.place}.{place}" if self.place else place)


class InputProblem(NamedTuple):
    """A problem of the input. Its text names file, document, object and field."""

    origin: Origin
    message: str
    #: Kind and name, "" for a part that is no object.
    object: str = ""
    #: Path inside the object.
    field: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (str(self.origin), self.object, self.field, self.message)))


class Entry(NamedTuple):
    """One initial object."""

    kind: str
    object: JsonObject
    origin: Origin


class Operation(NamedTuple):
    """One entry of the timeline."""

    #: Microseconds since the start.
    at: int
    verb: Verb
    kind: str
    namespace: str
    name: str
    #: The object of a create, the merge patch of a patch, {} of a delete.
    body: JsonObject
    origin: Origin

    @property
    def title(self) -> str:
        return f"{self.verb} {self.kind} {display_name(self.namespace, self.name)}"

    def __str__(self) -> str:
        return f"{self.origin}: {self.title}"


class Scenario(NamedTuple):
    """The input of a run: objects in the order of their creation, operations by time."""

    entries: tuple[Entry, ...]
    operations: tuple[Operation, ...]
    warnings: tuple[InputProblem, ...] = ()
    #: Annotations without effect and malformed card quotas, which `validate` reports in detail.
    findings: tuple[InputProblem, ...] = ()
    #: The uids of objects of the input.
    uids: frozenset[str] = frozenset()

    def findings_with(self, plugins: AbstractSet[str]) -> tuple[InputProblem, ...]:
        """The findings without those about a field that one of some plugins reads."""
        reads_affinity = AFFINITY_PLUGIN in plugins
        return tuple(one for one in self.findings if not (reads_affinity and one.field == AFFINITY_FIELD))


def in_creation_order(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Initial objects in the order of their creation."""
    return tuple(
        sorted(
            entries,
            key=lambda entry: (
                creation_rank(entry.kind),
                entry.kind,
                entry.object["metadata"].get("namespace", ""),
                entry.object["metadata"]["name"],
            ),
        )
    )


def as_manifests(scenario: Scenario) -> JsonObject:
    """One `v1` List from which `load_scenario` gives the same scenario."""
    items = [entry.object for entry in scenario.entries]
    if scenario.operations:
        operations = [
            {"at": f"{operation.at / SECOND:.6f}s", operation.verb: _target(operation)}
            for operation in scenario.operations
        ]
        head = {"apiVersion": SIMULATION_API, "kind": SCENARIO, "metadata": {"name": "changes"}}
        items.append({**head, "spec": {"operations": operations}})
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _target(operation: Operation) -> JsonObject:
    if operation.verb == "create":
        return operation.body
    metadata = {**operation.body.get("metadata", {}), "name": operation.name}
    if operation.namespace:
        metadata["namespace"] = operation.namespace
    return {
        **operation.body,
        "apiVersion": KIND_BY_NAME[operation.kind].api_version,
        "kind": operation.kind,
        "metadata": metadata,
    }
