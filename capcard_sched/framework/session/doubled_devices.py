"""Which of several claims with one device keeps it, and the texts of these claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.devices.claims import Claim
    from capcard_sched.devices.inventory import DeviceId
    from capcard_sched.devices.ledger import DeviceLedger
    from capcard_sched.model.job import Task


class Keeper(NamedTuple):
    """The claim that keeps a device."""

    claim: Claim
    device: DeviceId


def keeper(claim: Claim, ledger: DeviceLedger, tasks: Mapping[str, Task]) -> Keeper | None:
    """The claim that keeps a device of this one; None if it keeps its devices.

    A claim with a bound or unknown pod precedes others, then the older allocation; of two with bound pods both keep it.
    `tasks`: by uid.
    """
    if not ledger.doubled.devices or _is_used(claim, tasks):
        return None
    for key, device in ledger.doubled.rivals(claim.key).items():
        rival = ledger.claims[key]
        if _is_used(rival, tasks) or _age(rival) < _age(claim):
            return Keeper(rival, device)
    return None


def double_texts(ledger: DeviceLedger) -> dict[ObjectRef, str]:
    """The claims that have a device of another one, with a text for each."""
    found: dict[ObjectRef, str] = {}
    for key in sorted({key for keys in ledger.doubled.devices.values() for key in keys}):
        claim = ledger.claims[key]
        texts = [f"{'/'.join(device)} also to {other}" for other, device in ledger.doubled.rivals(key).items()]
        found[ObjectRef("ResourceClaim", claim.namespace, claim.name, claim.uid)] = ", ".join(texts)
    return found


def _is_used(claim: Claim, tasks: Mapping[str, Task]) -> bool:
    pods = [tasks.get(uid) for uid in claim.consumers]
    return any(task is None or task.status is not TaskStatus.PENDING for task in pods)


def _age(claim: Claim) -> tuple[str, str]:
    """A sort key: older allocations first."""
    stamp = claim.allocation.allocation_timestamp if claim.allocation is not None else None
    return stamp or "", claim.key
