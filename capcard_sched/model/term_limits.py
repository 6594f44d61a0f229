"""Bounds the affinity terms and spread constraints of a pod, so that no pod slows down the scheduling of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.model.objects import Affinity, PodAffinity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.model.objects import LabelSelector, PodAffinityTerm, TopologySpreadConstraint

#: Label requirements per pod for each affinity term of the limit.
_REQUIREMENTS_PER_TERM = 16


class TermLimits(NamedTuple):
    """The limits per pod. A pod that exceeds one is unschedulable."""

    #: Terms of node affinity, pod affinity and pod anti-affinity together, required and preferred.
    affinity_terms: int = 64
    spread_constraints: int = 16

    @property
    def requirements(self) -> int:
        """Labels, values of expressions and namespaces in the pod affinity terms and spread constraints together."""
        return self.affinity_terms * _REQUIREMENTS_PER_TERM


DEFAULT_TERM_LIMITS: Final = TermLimits()


class LimitedTerms(NamedTuple):
    """The terms of a pod that are evaluated."""

    affinity: Affinity | None
    spread: tuple[TopologySpreadConstraint, ...]
    #: The limit that the pod exceeds, "" for none.
    excess: str = ""


def limit_terms(
    affinity: Affinity | None, spread: tuple[TopologySpreadConstraint, ...], limits: TermLimits
) -> LimitedTerms:
    """Check the terms of a pod.

    A pod beyond a limit loses its terms, because it is not scheduled by them. Only its first required anti-affinity
    terms remain, within the limits: they protect a running pod from others.
    """
    if affinity is None and not spread:
        return LimitedTerms(None, ())
    terms = list(_pod_terms(affinity))
    number = len(terms) + _node_terms(affinity)
    if number > limits.affinity_terms:
        excess = f"pod has {number} affinity terms, the limit is {limits.affinity_terms}"
    elif len(spread) > limits.spread_constraints:
        excess = f"pod has {len(spread)} topology spread constraints, the limit is {limits.spread_constraints}"
    else:
        needed = sum(_requirements(term) for term in terms) + sum(_labels(each.label_selector) for each in spread)
        if needed <= limits.requirements:
            return LimitedTerms(affinity, spread)
        excess = (
            f"pod has {needed} label requirements in affinity terms and spread constraints, "
            f"the limit is {limits.requirements}"
        )
    return LimitedTerms(_protection(affinity, limits), (), excess)


def _node_terms(affinity: Affinity | None) -> int:
    found = affinity.node_affinity if affinity is not None else None
    if found is None:
        return 0
    required = found.required.node_selector_terms if found.required is not None else ()
    return len(required) + len(found.preferred or ())


def _pod_terms(affinity: Affinity | None) -> Iterator[PodAffinityTerm]:
    for side in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else ():
        if side is not None:
            yield from side.required or ()
            for each in side.preferred or ():
                yield each.pod_affinity_term


def _labels(selector: LabelSelector | None) -> int:
    if selector is None:
        return 0
    return len(selector.match_labels or ()) + sum(
        max(1, len(each.values or ())) for each in selector.match_expressions or ()
    )


def _requirements(term: PodAffinityTerm) -> int:
    keys = len(term.match_label_keys or ()) + len(term.mismatch_label_keys or ())
    return keys + _labels(term.label_selector) + _labels(term.namespace_selector) + len(term.namespaces or ())


def _protection(affinity: Affinity | None, limits: TermLimits) -> Affinity | None:
    """The first required anti-affinity terms, within the limits."""
    away = affinity.pod_anti_affinity if affinity is not None else None
    kept: list[PodAffinityTerm] = []
    needed = 0
    for term in (away.required or ())[: limits.affinity_terms] if away is not None else ():
        needed += _requirements(term)
        if needed > limits.requirements:
            break
        kept.append(term)
    return Affinity(pod_anti_affinity=PodAffinity(required=tuple(kept))) if kept else None
