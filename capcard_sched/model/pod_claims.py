"""The ResourceClaims of a pod: named in its spec, or generated from templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.model.unsupported import CLAIMS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.model.objects import PodObject


class PodClaim(NamedTuple):
    """One entry of `spec.resourceClaims` that needs a claim."""

    name: str
    #: Name of the ResourceClaim; "" while it does not exist.
    claim: str
    #: Name of the template it is generated from; "" for a claim of its own.
    template: str = ""
    #: Why no claim is known; "" when it is.
    problem: str = ""


def named_claims(namespace: str, claims: Iterable[PodClaim]) -> tuple[str, ...]:
    """`namespace/name` of the claims of a pod that exist, each once, in the order of the pod."""
    return tuple(dict.fromkeys(f"{namespace}/{each.claim}" for each in claims if each.claim))


def pod_claims(pod: PodObject) -> tuple[PodClaim, ...]:
    """The claims of a pod in order; entries that need none are left out."""
    entries = pod.spec.resource_claims
    if not entries:
        return ()
    namespace, name = pod.metadata.namespace or "default", pod.metadata.name
    generated = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses or ()}
    found: list[PodClaim] = []
    for entry in entries:
        template = entry.resource_claim_template_name or ""
        if entry.resource_claim_name:
            found.append(PodClaim(entry.name, entry.resource_claim_name))
        elif not template:
            problem = (
                f'pod "{namespace}/{name}", spec.resourceClaim "{entry.name}": none of the supported fields are set'
            )
            found.append(PodClaim(entry.name, "", "", problem))
        elif entry.name not in generated:
            problem = f'pod "{namespace}/{name}": ResourceClaim not created yet'
            found.append(PodClaim(entry.name, "", template, problem))
        elif claim := generated[entry.name]:
            found.append(PodClaim(entry.name, claim, template))
    return tuple(found)


def with_claims(unsupported: str, claims: tuple[PodClaim, ...], *, supported: bool) -> str:
    """The text of unsupported features of a pod after the support of claims changed."""
    parts = [part for part in unsupported.split("; ") if part and not part.startswith(CLAIMS.name)]
    if claims and not supported:
        names = [
            f"ResourceClaimTemplate {each.template}"
            if each.template
            else f"ResourceClaim {each.claim}"
            if each.claim
            else f"claim {each.name}"
            for each in claims
        ]
        parts.insert(0, CLAIMS.text(list(dict.fromkeys(names))))
    return "; ".join(parts)
