"""The service type of a pod: inference, training or unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from capcard_sched.model.annotations import SERVICE_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.model.job import Job
    from capcard_sched.model.task_class import TaskClass

ServiceType: TypeAlias = Literal["inference", "training", "unknown"]


def service_type(job: Job, cls: TaskClass, by_owner_kind: Mapping[str, ServiceType]) -> ServiceType:
    """The PodGroup's annotation decides; without one, the kind of the pod's first owner."""
    value = job.annotations.get(SERVICE_TYPE, "")
    if value == "inference" or value == "training":  # noqa: PLR1714 - mypy narrows comparisons, not `in`
        return value  # type: ignore[return-value]
    return "unknown" if value else by_owner_kind.get(cls.owner_kind, "unknown")


def has_service_type(job: Job) -> bool:
    """Whether the PodGroup has the annotation, valid or not: owner kinds do not count then."""
    return bool(job.annotations.get(SERVICE_TYPE))


def invalid_service_type(job: Job) -> str:
    """The annotation's value when it is neither of the two words, else ""."""
    value = job.annotations.get(SERVICE_TYPE, "")
    return "" if value in ("inference", "training") else value
