"""Full nodes for some resources, empty ones for others, and scarce ones left alone (plugins reference §23)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import numpy as np

from capcard_sched.framework.api.arguments import listed_names
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.api.problems import shown_text
from capcard_sched.framework.toolkit.annotation_warnings import AnnotationWarnings, annotation_warnings
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
    from typing import Any

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
#: What a factor of memory counts per thousandth of a device: with 8, each device goes with 8 GB.
_BYTES_PER_THOUSANDTH = 10**6


class Choice(msgspec.Struct, frozen=True):
    """How one resource counts."""

    type: str = LEAST_ALLOCATED
    weight: Annotated[int, msgspec.Meta(le=MOST_WEIGHT)] = 1


class ScarceArguments(msgspec.Struct, frozen=True):
    """Scarce resource avoidance: nodes without what a pod does not need come first."""

    #: Off unless it is true.
    enable: bool = False
    #: Names of the scarce resources, separated by commas.
    resources: str = ""
    #: Times the score; 0 scores nothing.
    weight: Annotated[int, msgspec.Meta(le=MOST_WEIGHT)] = 0
    #: Of each of them, 1 when not given.
    weights: dict[str, Annotated[int, msgspec.Meta(le=MOST_WEIGHT)]] = msgspec.field(
        name="resourceWeight", default_factory=dict
    )


class ProportionalArguments(msgspec.Struct, frozen=True):
    """What pods that ask for none of the resources must leave to them."""

    #: Off unless it is true.
    enable: bool = False
    #: Names of the resources, separated by commas.
    resources: str = ""
    #: `<name>.cpu`: cores, `<name>.memory`: GB, left for each free device; 1 when not given.
    proportions: dict[str, float] = msgspec.field(name="resourceProportion", default_factory=dict)


class ResourceStrategyFitArguments(msgspec.Struct, frozen=True):
    """Arguments as users write them."""

    #: Times the score of `resources`; 0 scores nothing.
    weight: Annotated[int, msgspec.Meta(ge=0, le=MOST_WEIGHT)] = msgspec.field(name=WEIGHT_KEY, default=10)
    #: By resource name, or by the beginnings of names: `nvidia.com/*`. Without any, cpu and memory: LeastAllocated.
    resources: dict[str, Choice | None] = {}
    #: Scarce resource avoidance: nodes without what a pod does not need come first.
    sra: ScarceArguments = ScarceArguments()
    #: What pods that ask for none of the resources must leave to them.
    proportional: ProportionalArguments = ProportionalArguments()


class _StrategyTerm(NamedTuple):
    """One requested resource that counts."""

    column: int
    request: int
    weight: int
    most: bool


class _Reserve(NamedTuple):
    """What one resource wants left for it."""

    resource: str
    #: Thousandths of a core, and bytes, per thousandth of a free device.
    cpu: Fraction
    memory: Fraction


class ResourceStrategyFit(Plugin):
    """Scores nodes by how full a pod would make them, each resource in its own way, and spares scarce resources.

    A pod's own annotation volcano.sh/resource-strategy-scoring-type, with volcano.sh/resource-strategy-weight, takes
    the place of `resources` for it. With `proportional`, pods that need no cards leave enough cpu and memory free for
    each free card.
    """

    name = "resource-strategy-fit"
    Arguments = ResourceStrategyFitArguments
    arguments: ResourceStrategyFitArguments

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        given = self.arguments
        choices = {name: choice or Choice() for name, choice in given.resources.items()}
        if not choices:
            choices = {CPU: Choice(), MEMORY: Choice()}
        self._exact = {name: choice for name, choice in choices.items() if not name.endswith(ANY)}
        #: Beginnings of names, the longest first.
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
        self._misread = AnnotationWarnings()

    # --- arguments --------------------------------------------------------------------------------------------------

    @classmethod
    def parse_arguments(cls, raw: Mapping[str, object], problems: ArgumentReader) -> ResourceStrategyFitArguments:
        """Wrong names and numbers below their bounds are warnings; anything of a wrong type is an error."""
        arguments = problems.decode(cls.Arguments, raw)
        assert isinstance(arguments, ResourceStrategyFitArguments)
        for key, struct in (("sra", ScarceArguments), ("proportional", ProportionalArguments)):
            value = raw.get(key)
            reader, inner = problems.inside(value if isinstance(value, dict) else None, key)
            known = {field.encode_name for field in msgspec.structs.fields(struct)}
            for name in sorted(inner.keys() - known):
                reader.unknown(name, known)
        return ResourceStrategyFitArguments(
            weight=arguments.weight,
            resources=_mended_choices(raw.get("resources"), arguments.resources, problems),
            sra=_mended_scarce(arguments.sra, problems),
            proportional=_mended_proportional(arguments.proportional, problems),
        )

    # --- sessions ---------------------------------------------------------------------------------------------------

    def open(self, session: Session) -> None:
        """Tell of annotations that cannot be read. O(pods of the jobs that changed), when there are such at all."""
        self._session = session
        self._terms.clear()
        if any(_problem(cls) for cls in session.classes):
            self._misread.report_pods(session, lambda task: _problem(task.cls))

    # --- how full: what placements change ---------------------------------------------------------------------------

    def row_private(self, profile: PodSignature) -> bool:
        return False

    def node_order(self, profile: PodSignature, rows: NodeView) -> Scores | None:
        """0 to 100 x `resourceStrategyFitWeight` per row; None when nothing the pod asks for counts."""
        terms = self._terms.get(profile.cls)
        if terms is None:
            terms = self._terms[profile.cls] = self._terms_of(profile.cls)
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
        """What the class asks for that has a weight; nothing when the weights are all 0."""
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
        """By its name, else by the longest beginning of it."""
        found = self._exact.get(resource)
        if found is not None:
            return found
        return next((choice for prefix, choice in self._prefixes if resource.startswith(prefix)), None)

    # --- scarce resources: what nodes are made of -------------------------------------------------------------------

    def node_order_static(self, profile: PodSignature, rows: NodeView) -> Scores | None:
        """100 x `sra.weight` where a node has none of the scarce resources, less the more of them it has."""
        total = sum(self._scarce.values())
        if not total:
            return None
        allocatable, request = rows.allocatable, profile.cls.request
        had = np.zeros(len(rows), dtype=np.int64)
        for name, weight in self._scarce.items():
            column = self._session.resources.find(name)
            if column is not None:
                had += np.where(allocatable[:, column] > 0, weight, 0)
        scores: Scores = (total - had) / total * (MAX_SCORE * self.arguments.sra.weight)
        scores[(allocatable[:, request > 0] <= 0).any(axis=1)] = 0.0
        return scores

    # --- what must be left ------------------------------------------------------------------------------------------

    def predicate(self, profile: PodSignature, rows: NodeView, verdict: FilterResult) -> None:
        """Pods that ask for none of the resources leave each free device its share of cpu and memory."""
        if not self._reserves:
            return
        request, find = profile.cls.request, self._session.resources.find
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
            verdict.reject(short & (free > 0), Code.UNRESOLVABLE, reason)


def _times(amounts: npt.NDArray[np.int64], factor: Fraction) -> npt.NDArray[np.int64]:
    """Exact products, rounded up: a whole number is below the product when it is below that."""
    values, positions = np.unique(np.maximum(amounts, 0), return_inverse=True)
    products = [min(math.ceil(value * factor), _MOST_AMOUNT) for value in values.tolist()]
    return np.array(products, dtype=np.int64)[positions]


def _own_choices(cls: TaskClass) -> dict[str, Choice] | None:
    """What the annotations of a class say; None when they say nothing."""
    strategy = cls.annotations.get(RESOURCE_STRATEGY_SCORING_TYPE)
    if strategy is None:
        return None
    if _problem(cls):
        return {}
    weights = parse_weights(cls.annotations[RESOURCE_STRATEGY_WEIGHT])
    return {name: Choice(strategy, weight) for name, weight in weights}


def _problem(cls: TaskClass) -> str:
    """What is wrong with the annotations of a class, as its pods are told; "" for nothing."""
    annotations = cls.annotations
    strategy = annotations.get(RESOURCE_STRATEGY_SCORING_TYPE)
    if strategy is None:
        return ""
    if strategy not in STRATEGIES:
        detail, accepted = f'"{shown_text(strategy)}" is not accepted; {NO_WEIGHTS}', " or ".join(STRATEGIES)
        return annotation_warnings(RESOURCE_STRATEGY_SCORING_TYPE, detail, accepted)
    detail = "it is missing beside a scoring type"
    if RESOURCE_STRATEGY_WEIGHT in annotations:
        try:
            parse_weights(annotations[RESOURCE_STRATEGY_WEIGHT])
        except StrategyError as error:
            detail = str(error)
        else:
            return ""
    return annotation_warnings(RESOURCE_STRATEGY_WEIGHT, f"{detail}; {NO_WEIGHTS}", WEIGHTS_FORM)


# --- arguments that are nearly right ----------------------------------------------------------------------------------


def _mended_choices(
    raw: object, choices: Mapping[str, Choice | None], problems: ArgumentReader
) -> dict[str, Choice | None]:
    mended: dict[str, Choice | None] = {}
    known = {field.encode_name for field in msgspec.structs.fields(Choice)}
    reader, entries = problems.inside(raw if isinstance(raw, dict) else None, "resources")
    for name, given in choices.items():
        if ANY in name.removesuffix(ANY) or name == ANY:
            accepted = f"a resource name, or the beginning of one and {ANY}"
            reader.warning(name, f'"{name}" matches no resource; it is ignored', accepted=accepted)
            continue
        choice = given or Choice()
        inner, entry = reader.inside(entries.get(name), name)
        for key in sorted(entry.keys() - known):
            inner.unknown(key, known)
        if choice.type and choice.type not in STRATEGIES:
            message = f'"{choice.type}" is no strategy; {LEAST_ALLOCATED} is used'
            inner.warning("type", message, accepted=f"one of {', '.join(STRATEGIES)}")
        if choice.weight <= 0:
            inner.warning("weight", f"{choice.weight} is not above 0; 1 is used", accepted="an integer >= 1")
        strategy = choice.type if choice.type in STRATEGIES else LEAST_ALLOCATED
        mended[name] = Choice(strategy, max(1, choice.weight))
    return mended


def _mended_scarce(given: ScarceArguments, problems: ArgumentReader) -> ScarceArguments:
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
        reader.warning("weight", f"{given.weight} is below 0; nothing is scored", accepted="an integer >= 0")
    return msgspec.structs.replace(given, weight=max(0, given.weight), weights=weights)


def _mended_proportional(given: ProportionalArguments, problems: ArgumentReader) -> ProportionalArguments:
    names = {f"{name}.{part}" for name in listed_names(given.resources) for part in (CPU, MEMORY)}
    inner, _ = problems.inside(None, "proportional", "resourceProportion")
    mended = {}
    for name, factor in given.proportions.items():
        if name not in names:
            inner.unknown(name, names)
            continue
        usable = math.isfinite(factor) and factor >= 0
        if not usable:
            inner.warning(name, f"{factor:g} is no number from 0 on; 1 is used", accepted="a number >= 0")
        mended[name] = factor if usable else 1.0
    return msgspec.structs.replace(given, proportions=mended)
