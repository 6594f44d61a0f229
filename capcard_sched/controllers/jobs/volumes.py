"""The volumes of a Job: claims that are created for it, and claims that it names."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from capcard_sched.controllers.objects import CLAIM, JsonObject, owner_reference
from capcard_sched.controllers.view import Create

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.controllers.jobs.job_spec import JobSpec
    from capcard_sched.controllers.view import View

_SUFFIX_LETTERS: Final = 12


def claim_name(job: JobSpec, index: int) -> str:
    """`<job>-pvc-<suffix>` for volume `index`. A repeated creation finds the claim of the first."""
    return f"{job.name}-pvc-{hashlib.sha256(f'{job.uid}/{index}'.encode()).hexdigest()[:_SUFFIX_LETTERS]}"


def unnamed_volumes(job: JobSpec) -> list[int]:
    """Indices of the volumes whose claim is still to be created."""
    return [
        index
        for index, volume in enumerate(job.volumes)
        if not volume.get("volumeClaimName") and volume.get("volumeClaim") is not None
    ]


def create_claims(job: JsonObject, desired: JobSpec) -> list[Create]:
    """The claims to create."""
    return [
        Create(
            {
                "apiVersion": "v1",
                "kind": CLAIM,
                "metadata": {
                    "name": claim_name(desired, index),
                    "namespace": desired.namespace,
                    "ownerReferences": [owner_reference(job)],
                },
                "spec": desired.volumes[index]["volumeClaim"],
            },
            adopt=True,
        )
        for index in unnamed_volumes(desired)
    ]


def named_volumes(job: JobSpec) -> list[JsonObject]:
    """`spec.volumes` with the names of the created claims."""
    unnamed = set(unnamed_volumes(job))
    return [
        {**volume, "volumeClaimName": claim_name(job, index)} if index in unnamed else volume
        for index, volume in enumerate(job.volumes)
    ]


def created_claims(job: JobSpec) -> list[str]:
    """Names of the claims that were created for the Job."""
    names = (claim_name(job, index) for index in range(len(job.volumes)))
    return [name for name, volume in zip(names, job.volumes, strict=True) if volume.get("volumeClaimName") == name]


def missing_claims(view: View, job: JobSpec) -> Sequence[str]:
    """Claims that the Job names and that do not exist."""
    names = dict.fromkeys(volume["volumeClaimName"] for volume in job.volumes if volume.get("volumeClaimName"))
    return [name for name in names if view.get(CLAIM, job.namespace, name) is None]
