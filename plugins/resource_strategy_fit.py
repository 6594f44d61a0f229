"""Scores nodes with a strategy per resource, and keeps nodes with scarce resources free."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import numpy as np

from capcard_sched.framework.api.arguments import listed_names
from capcard_sched.framework.api.node_hooks import NODE_AMOUNTS, NODE_SPEC, filter, score
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.api.problems import shown_text
from capcard_sched.framework.toolkit.annotation_warnings import AnnotationWarnings, invalid_annotation
from capcard_sched.model.annotations import RESOURCE_STRATEGY_SCORING_TYPE, RESOURCE_STRATEGY_WEIGHT
from capcard_sched.model.refusal import Code
from capcard_sched.model.resources import CPU, CPU_COLUMN, MEMORY, MEMORY_COLUMN
from capcard_sched.model.strategies import (
    LEAST_ALLOCATED,
    MOST_ALLOCATED,
    MOST_WEIGHT,
    STRATEGIES,
    WEIGHTS_FORM,
    StrategyError,
    parse_weights,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from capcard_sched.framework.api.arguments import ArgumentReader
    from capcard_sched.framework.api.node_view import FilterResult, NodeView, PodSignature, Scores
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.task_class import TaskClass

MAX_SCORE = 100
ANY = "*"
WEIGHT_KEY = "resourceStrategyFitWeight"
NO_WEIGHTS = "the plugin does not score the pod"

_MOST_AMOUNT = 2**63 - 1
#: Bytes per thousandth of a device and unit of the memory factor: factor 8 reserves 8 GB per device.
_BYTES_PER_THOUSANDTH = 10**6


class Choice(msgspec.Struct, frozen=True):
    """Strategy and weight of one resource."""

    type: str = LEAST_ALLOCATED
    weight: Annotated[int, msgspec.Meta(le=MOST_WEIGHT)] = 1


class ScarceArguments(msgspec.Struct, frozen=True):
    """Scarce resource avoidance: prefers nodes without the scarce resources that a pod does not request."""

    #: Whether it is enabled.
    enable: bool = False
    #: Comma-separated names of the scarce resources.
    resources: str = ""
    #: Score multiplier; 0 disables.
    weight: Annotated[int, msgspec.Meta(le=MOST_WEIGHT)] = 0
    #: Relative weight of each of them, 1 by default.
    weights: dict[str, Annotated[int, msgspec.Meta(le=MOST_WEIGHT)]] = msgspec.field(
        name="resourceWeight", default_factory=dict
    )


class ProportionalArguments(msgspec.Struct, frozen=True):
    """Cpu and memory that pods without the resources must leave free for them."""

    #: Whether it is enabled.
    enable: bool = False
    #: Comma-separated names of the resources.
    resources: str = ""
    #: `<name>.cpu`: cores, `<name>.memory`: GB, reserved for each free device; 1 by default.
    proportions: dict[str, float] = msgspec.field(name="resourceProportion", default_factory=dict)


class ResourceStrategyFitArguments(msgspec.Struct, frozen=True):
    """Arguments of resource-strategy-fit."""

    #: Multiplier of the score of `resources`; 0 disables.
    weight: Annotated[int, msgspec.Meta(ge=0, le=MOST_WEIGHT)] = msgspec.field(name=WEIGHT_KEY, default=10)
    #: Strategy by resource name or prefix (`nvidia.com/*`). Default: cpu and memory, LeastAllocated.
    resources: dict[str, Choice | None] = {}
    #: Scarce resource avoidance: prefers nodes without the scarce resources that a pod does not request.
    sra: ScarceArguments = ScarceArguments()
    #: Cpu and memory that pods without the resources must leave free for them.
    proportional: ProportionalArguments = ProportionalArguments()


class _StrategyTerm(NamedTuple):
    column: int
    request: int
    weight: int
    most: bool


class _Reserve(NamedTuple):
    """The cpu and memory reserved for one resource."""

    resource: str
    #: Thousandths of a core, and bytes, per thousandth of a free device.
    cpu: Fraction
    memory: Fraction


class ResourceStrategyFit(Plugin):
    """Scores nodes by utilization with a strategy per resource, and keeps nodes with scarce resources free.

    A pod's annotation volcano.sh/resource-strategy-scoring-type, with volcano.sh/resource-strategy-weight, replaces
    `resources` for the pod. With `proportional`, pods without cards leave enough cpu and memory for each free card.
    """

    name = "resource-strategy-fit"
    Arguments = ResourceStrategyFitArguments
    arguments: ResourceStrategyFitArguments

    def setup(self) -> None:
        given = self.arguments
        choices = {name: choice or Choice() for name, choice in given.resources.items()}
        if not choices:
            choices = {CPU: Choice(), MEMORY: Choice()}
        self._exact = {name: choice for name, choice in choices.items() if not name.endswith(ANY)}
        #: Prefixes of names, the longest first.
        self._prefixes = sorted(
            ((name.removesuffix(ANY), choice) for name, choice in choices.items() if name.endswith(ANY)),
            key=lambda entry: (-len(entry[0]), entry[0]),
        )
        scarce, proportional = given.sra, given.proportional
        #: Weight by name of the scarce resources.
        self._scarce: dict[str, int] = {}
        if scarce.enable and scarce.weight > 0:
            self._scarce = {name: scarce.weights.get(name, 1) for name in listed_names(scarce.resources)}
        self._reserves: list[_Reserve] = []
        if proportional.enable:
            factors = proportional.proportions
            self._reserves = [
                _Reserve(
                    name,
                    Fraction(repr(factors.get(f"{name}.{CPU}", 1.0))),
                    Fraction(repr(factors.get(f"{name}.{MEMORY}", 1.0))) * _BYTES_PER_THOUSANDTH,
                )
                for name in listed_names(proportional.resources)
            ]
        self._session: Session
        self._terms: dict[TaskClass, list[_StrategyTerm]] = {}
        self._warnings = AnnotationWarnings()

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> ResourceStrategyFitArguments:
        """Unknown names and numbers below their bounds are warnings; a wrong type is an error."""
        arguments = problems.decode(ResourceStrategyFitArguments, raw)
        for key, struct in (("sra", ScarceArguments), ("proportional", ProportionalArguments)):
            value = raw.get(key)
            reader, inner = problems.inside(value if isinstance(value, dict) else None, key)
            known = {field.encode_name for field in msgspec.structs.fields(struct)}
            for name in sorted(inner.keys() - known):
                reader.unknown(name, known)
        return ResourceStrategyFitArguments(
            weight=arguments.weight,
            resources=_corrected_choices(raw.get("resources"), arguments.resources, problems),
            sra=_corrected_scarce(arguments.sra, problems),
            proportional=_corrected_proportional(arguments.proportional, problems),
        )

    def open(self, session: Session) -> None:
        """Report annotations that cannot be parsed. O(pods of the jobs that changed) if a class has one."""
        self._session = session
        self._terms.clear()
        if any(_problem(cls) for cls in session.snapshot.classes):
            self._warnings.report_pods(session, lambda task: _problem(task.cls))

    @score(reads=NODE_AMOUNTS)
    def score_utilization(self, signature: PodSignature, rows: NodeView) -> Scores | None:
        """0 to 100 x `resourceStrategyFitWeight` per row; None when no requested resource has a weight."""
        terms = self._terms.get(signature.cls)
        if terms is None:
            terms = self._terms[signature.cls] = self._terms_of(signature.cls)
        if not terms:
            return None
        used, allocatable = rows.used, rows.allocatable
        total = sum(term.weight for term in terms)
        scores: Scores = np.zeros(len(rows))
        over = np.zeros(len(rows), dtype=bool)
        for column, request, weight, most in terms:
            offered = allocatable[:, column]
            taken = used[:, column] + request
            over |= (taken > offered) & (offered > 0)
            part = taken if most else offered - taken
            scores += np.where(offered > 0, part / np.maximum(offered, 1), 0.0) * weight
        scores[over] = 0.0
        return scores / total * (MAX_SCORE * self.arguments.weight)

    def _terms_of(self, cls: TaskClass) -> list[_StrategyTerm]:
        if self.arguments.weight <= 0:
            return []
        choices = _own_choices(cls)
        names = self._session.resources.names
        terms = []
        for column in np.flatnonzero(cls.request > 0).tolist():
            choice = self._choice(names[column]) if choices is None else choices.get(names[column])
            if choice is not None and choice.weight > 0:
                most = choice.type == MOST_ALLOCATED
                terms.append(_StrategyTerm(column, int(cls.request[column]), choice.weight, most))
        return terms

    def _choice(self, resource: str) -> Choice | None:
        """The choice for the exact name, else for the longest prefix."""
        found = self._exact.get(resource)
        if found is not None:
            return found
        return next((choice for prefix, choice in self._prefixes if resource.startswith(prefix)), None)

    @score(reads=NODE_SPEC)
    def score_scarcity(self, signature: PodSignature, rows: NodeView) -> Scores | None:
        """100 x `sra.weight` for nodes without scarce resources, reduced by the weight of those that a node has."""
        total = sum(self._scarce.values())
        if not total:
            return None
        allocatable, request = rows.allocatable, signature.cls.request
        had = np.zeros(len(rows), dtype=np.int64)
        for name, weight in self._scarce.items():
            column = self._session.resources.find(name)
            if column is not None:
                had += np.where(allocatable[:, column] > 0, weight, 0)
        scores: Scores = (total - had) / total * (MAX_SCORE * self.arguments.sra.weight)
        scores[(allocatable[:, request > 0] <= 0).any(axis=1)] = 0.0
        return scores

    def _reserves_any(self, signature: PodSignature) -> bool:
        return bool(self._reserves)

    @filter(reads=NODE_AMOUNTS, when=_reserves_any)
    def filter_proportional(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        """Reject nodes where a pod without the resources would use the cpu and memory reserved for a free device."""
        request, find = signature.cls.request, self._session.resources.find
        columns = [(reserve, find(reserve.resource)) for reserve in self._reserves]
        if any(column is not None and request[column] > 0 for _, column in columns):
            return
        idle = rows.idle
        left_cpu = idle[:, CPU_COLUMN] - request[CPU_COLUMN]
        left_memory = idle[:, MEMORY_COLUMN] - request[MEMORY_COLUMN]
        for reserve, column in columns:
            if column is None:
                continue
            free = idle[:, column]
            short = (left_cpu < _times(free, reserve.cpu)) | (left_memory < _times(free, reserve.memory))
            reason = f"proportional of resource {reserve.resource} check failed"
            result.reject(short & (free > 0), Code.UNRESOLVABLE, reason)


def _times(amounts: npt.NDArray[np.int64], factor: Fraction) -> npt.NDArray[np.int64]:
    """Exact products, rounded up."""
    values, positions = np.unique(np.maximum(amounts, 0), return_inverse=True)
    products = [min(math.ceil(value * factor), _MOST_AMOUNT) for value in values.tolist()]
    return np.array(products, dtype=np.int64)[positions]


def _own_choices(cls: TaskClass) -> dict[str, Choice] | None:
    """The choices in the annotations of a class; None without a scoring type, empty when they are invalid."""
    strategy = cls.annotations.get(RESOURCE_STRATEGY_SCORING_TYPE)
    if strategy is None:
        return None
    if _problem(cls):
        return {}
    weights = parse_weights(cls.annotations[RESOURCE_STRATEGY_WEIGHT])
    return {name: Choice(strategy, weight) for name, weight in weights}


def _problem(cls: TaskClass) -> str:
    """The event message about invalid annotations of a class, "" for valid ones."""
    annotations = cls.annotations
    strategy = annotations.get(RESOURCE_STRATEGY_SCORING_TYPE)
    if strategy is None:
        return ""
    if strategy not in STRATEGIES:
        detail, accepted = f'"{shown_text(strategy)}" is not accepted; {NO_WEIGHTS}', " or ".join(STRATEGIES)
        return invalid_annotation(RESOURCE_STRATEGY_SCORING_TYPE, detail, accepted)
    detail = "it is required with a scoring type"
    if RESOURCE_STRATEGY_WEIGHT in annotations:
        try:
            parse_weights(annotations[RESOURCE_STRATEGY_WEIGHT])
        except StrategyError as error:
            detail = str(error)
        else:
            return ""
    return invalid_annotation(RESOURCE_STRATEGY_WEIGHT, f"{detail}; {NO_WEIGHTS}", WEIGHTS_FORM)


def _corrected_choices(
    raw: object, choices: Mapping[str, Choice | None], problems: ArgumentReader
) -> dict[str, Choice | None]:
    corrected: dict[str, Choice | None] = {}
    known = {field.encode_name for field in msgspec.structs.fields(Choice)}
    reader, entries = problems.inside(raw if isinstance(raw, dict) else None, "resources")
    for name, given in choices.items():
        if ANY in name.removesuffix(ANY) or name == ANY:
            accepted = f"a resource name, or a prefix followed by {ANY}"
            reader.warning(name, f'"{name}" matches no resource; it is ignored', accepted=accepted)
            continue
        choice = given or Choice()
        inner, entry = reader.inside(entries.get(name), name)
        for key in sorted(entry.keys() - known):
            inner.unknown(key, known)
        if choice.type and choice.type not in STRATEGIES:
            message = f'"{choice.type}" is not a strategy; {LEAST_ALLOCATED} is used'
            inner.warning("type", message, accepted=f"one of {', '.join(STRATEGIES)}")
        if choice.weight <= 0:
            inner.warning("weight", f"{choice.weight} is not above 0; 1 is used", accepted="an integer >= 1")
        strategy = choice.type if choice.type in STRATEGIES else LEAST_ALLOCATED
        corrected[name] = Choice(strategy, max(1, choice.weight))
    return corrected


def _corrected_scarce(given: ScarceArguments, problems: ArgumentReader) -> ScarceArguments:
    weights = {}
    reader, _ = problems.inside(None, "sra")
    inner, _ = reader.inside(None, "resourceWeight")
    names = listed_names(given.resources)
    for name, weight in given.weights.items():
        if name not in names:
            inner.warning(name, "the resource is not listed in resources; its weight is ignored")
        if weight < 0:
            inner.warning(name, f"{weight} is below 0; 1 is used", accepted="an integer >= 0")
        weights[name] = weight if weight >= 0 else 1
    if given.weight < 0:
        reader.warning("weight", f"{given.weight} is below 0; the score is disabled", accepted="an integer >= 0")
    return msgspec.structs.replace(given, weight=max(0, given.weight), weights=weights)


def _corrected_proportional(given: ProportionalArguments, problems: ArgumentReader) -> ProportionalArguments:
    names = {f"{name}.{part}" for name in listed_names(given.resources) for part in (CPU, MEMORY)}
    inner, _ = problems.inside(None, "proportional", "resourceProportion")
    corrected = {}
    for name, factor in given.proportions.items():
        if name not in names:
            inner.unknown(name, names)
            continue
        usable = math.isfinite(factor) and factor >= 0
        if not usable:
            inner.warning(name, f"{factor:g} is not a number >= 0; 1 is used", accepted="a number >= 0")
        corrected[name] = factor if usable else 1.0
    return msgspec.structs.replace(given, proportions=corrected)
