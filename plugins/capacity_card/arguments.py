"""Arguments of the plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import msgspec

from capcard_sched.framework.api.arguments import LENIENT
from capcard_sched.model.annotations import SERVICE_TYPE
from capcard_sched.model.card_devices import CardDevice

if TYPE_CHECKING:
    from capcard_sched.model.job import Job
    from capcard_sched.model.task_class import TaskClass

#: Name of the plugin in the scheduler-conf.
NAME: Final = "capacity-card"
ServiceType: TypeAlias = Literal["inference", "training", "unknown"]


class CapacityCardArguments(msgspec.Struct, frozen=True, rename="camel"):
    """Keys are the field names in camelCase. A wrong value is reported and the default applies."""

    #: Pods and jobs that use cards are neither checked against nor charged to cpu and memory quota.
    card_unlimited_cpu_memory: bool = False
    #: Factor of the card preference score.
    node_order_weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    #: Enqueue compares with limit x factor, rounded down; every other check with the plain limit.
    over_commit_factor: Annotated[float, msgspec.Meta(ge=1)] = 1.0
    #: Kind of a pod's first owner reference to its service type, for PodGroups without the annotation.
    pod_owner_reference_to_service_type: Annotated[dict[str, Literal["inference", "training"]], LENIENT] = {}
    #: The minimum of a job whose pods exist: its `minMember` pods, or all of them.
    card_minimum: Literal["minMember", "allPods"] = "minMember"
    #: Whether pods of one job may get different alternatives of `A|B`.
    multi_card_job_mode: Literal["sum", "single"] = "sum"
    #: Whether nodes without a pod's single card are filtered out.
    card_node_filter: bool = True
    #: Pods that request a card resource without a card name: not charged, charged like a pod that accepts every card
    #: of the resource, or refused.
    unnamed_cards: Literal["ignore", "infer", "deny"] = "ignore"
    #: Device resource to the node label, or labels, that name its model; the first label with a value counts.
    card_labels: dict[str, str | tuple[str, ...]] = {}
    #: Cards of devices of other drivers: the driver, the attributes whose values form the card, an optional suffix.
    card_devices: tuple[CardDevice, ...] = ()
    #: The quota of queues without `volcano.sh/card.quota`: 0 of every card, or no limit.
    queues_without_card_quota: Literal["none", "unlimited"] = "none"
    #: Only `inference` may reclaim cards from other queues; otherwise unknown types may too.
    strict_service_type: bool = False
    #: A victim's priority must be lower than the reclaimer's.
    reclaim_requires_higher_priority: bool = False
    #: Whether replicas of an inference service beyond its `minMember` reclaim cards too.
    reclaim_elastic: bool = True
    #: The eviction unit of a training gang: the whole gang, or the pods needed; the job's own policy on PodEvicted
    #: then decides about the rest.
    gang_eviction: Literal["whole", "policy"] = "whole"
    #: Write `volcano.sh/card.allocated` on queues.
    publish_card_usage: bool = False

    def service_type(self, job: Job, cls: TaskClass) -> ServiceType:
        """The PodGroup's annotation decides; without one, the kind of the pod's first owner."""
        value = job.annotations.get(SERVICE_TYPE, "")
        if value == "inference" or value == "training":  # noqa: PLR1714 - mypy narrows comparisons, not `in`
            return value  # type: ignore[return-value]
        kind = cls.owner_kind.partition(".")[0]
        return "unknown" if value else self.pod_owner_reference_to_service_type.get(kind, "unknown")
