"""What may be set under `arguments:` of the plugin (capacity-card reference §5)."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Literal

import msgspec

from capcard_sched.framework.api.arguments import LENIENT


class CapacityCardArguments(msgspec.Struct, frozen=True, rename="camel"):
    """Keys are the field names in camelCase. A wrong value is a warning and the default stays."""

    #: Pods and jobs that use cards are neither checked against nor charged to cpu and memory quota.
    card_unlimited_cpu_memory: bool = False
    #: Factor of the card preference score.
    node_order_weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    #: Enqueue compares with limit x factor, rounded down; every other check with the plain limit (R17).
    over_commit_factor: Annotated[float, msgspec.Meta(ge=1)] = 1.0
    #: Kind of a pod's first owner reference to its service type, where no annotation says it.
    pod_owner_reference_to_service_type: Annotated[dict[str, Literal["inference", "training"]], LENIENT] = {}
    #: The minimum of a job whose pods exist: its `minMember` pods, or all of them (R14).
    card_minimum: Literal["minMember", "allPods"] = "minMember"
    #: Whether pods of one job may get different alternatives of `A|B` (R18).
    multi_card_job_mode: Literal["sum", "single"] = "sum"
    #: Whether nodes without a pod's single card are filtered out (R19).
    card_node_filter: bool = True
    #: What to do with pods that ask for a card resource but name no card (R7).
    unnamed_cards: Literal["ignore", "infer", "deny"] = "ignore"
    #: Only `inference` may take cards from other queues; otherwise unknown types may too (R20).
    strict_service_type: bool = False
    #: A victim's priority must be lower than the reclaimer's (R21).
    reclaim_requires_higher_priority: bool = False
    #: Whether replicas of an inference service beyond its `minMember` take cards too (R31).
    reclaim_elastic: bool = True
    #: What of a training gang goes when a member has to: all of it, or the pods needed and the rest by the job's own
    #: policy on PodEvicted (tidal reference §8).
    gang_eviction: Literal["whole", "policy"] = "whole"
    #: Write `volcano.sh/card.allocated` on queues.
    publish_card_usage: bool = False

    def promised(self, limit: int) -> int:
        """`limit` x `overCommitFactor`, rounded down to the unit; exact for the decimal that the user wrote."""
        if self.over_commit_factor == 1:
            return limit
        numerator, denominator = _ratio(self.over_commit_factor)
        return limit * numerator // denominator


@lru_cache(maxsize=8)
def _ratio(factor: float) -> tuple[int, int]:
    return Fraction(str(factor)).as_integer_ratio()
