"""Which claim of a pod allows no node, with its StorageClass and its volume: the reasons of the filters name none."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from capcard_sched.framework.explain.sentences import hint
from capcard_sched.model.quoting import brief, escaped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.storage import Storage, VolumeClaim

#: Claims of a namespace with whose names a misspelt one is compared, and the misspelt ones: tenants write both.
_MOST_NAMES: Final = 500
_MOST_MISSING: Final = 3


def unbound_claims(storage: Storage, task: Task) -> str:
    """`PersistentVolumeClaim data is not bound: StorageClass fast does not exist`; "" if no claim is the cause."""
    absent = [
        name
        for name in task.cls.volumes
        if f"{task.namespace}/{name}" not in storage.claims and name not in task.cls.own_volumes
    ]
    similar = [_similar(storage, task.namespace, name) for name in absent[:_MOST_MISSING]]
    missing = [
        f"PersistentVolumeClaim {escaped(name)} does not exist{meant}"
        for name, meant in zip_longest(absent, similar, fillvalue="")
    ]
    unbound = [
        f"PersistentVolumeClaim {escaped(claim.name)} is not bound: {_unbound(storage, claim)}"
        for claim in _unbound_claims(storage, task)
    ]
    lost = [
        f"PersistentVolumeClaim {escaped(claim.name)} is lost: PersistentVolume {escaped(claim.volume_name)} "
        f"{'does not exist' if claim.volume_name not in storage.volumes else 'is not bound to it'}"
        for claim in _claims(storage, task)
        if claim.lost
    ]
    return "; ".join((*missing, *lost, *unbound))


def _similar(storage: Storage, namespace: str, name: str) -> str:
    """`; did you mean data?`: the claim of a namespace that a name misspells; "" for none."""
    known = [claim.name for key, claim in storage.claims.items() if key.startswith(f"{namespace}/")]
    return hint(name, known) if len(known) <= _MOST_NAMES else ""


def awaits_volumes(storage: Storage, task: Task) -> bool:
    """Whether other controllers bind all claims that allow no node: each has a volume or a provisioner."""
    unbound = list(_unbound_claims(storage, task))
    return bool(unbound) and all(_is_coming(storage, claim) for claim in unbound)


def open_claims(storage: Storage, task: Task) -> str:
    """`claim data (StorageClass fast)` for each claim that is bound with its pod; "" for none."""
    return brief(
        [
            f"claim {escaped(claim.name)} (StorageClass {escaped(claim.class_name)}{_provisions(storage, claim)})"
            for claim in _claims(storage, task)
            if not claim.bound
        ]
    )


def bound_volumes(storage: Storage, task: Task) -> str:
    """`PersistentVolume pv-1 of claim data` for each claim that has a volume; "" for none."""
    return brief(
        [
            f"PersistentVolume {escaped(claim.volume_name)} of claim {escaped(claim.name)}"
            for claim in _claims(storage, task)
            if claim.volume_name
        ]
    )


def attach_limits(storage: Storage, nodes: Iterable[Node]) -> str:
    """` (limit 1, driver ebs.csi.aws.com)` where nodes have one limit, of one driver; "" otherwise."""
    limits = {tuple(storage.limits.get(node.name, {}).items()) for node in nodes}
    only = limits.pop() if len(limits) == 1 else ()
    return f" (limit {only[0][1]}, driver {escaped(only[0][0])})" if len(only) == 1 else ""


def _claims(storage: Storage, task: Task) -> Iterator[VolumeClaim]:
    for name in task.cls.volumes:
        claim = storage.claims.get(f"{task.namespace}/{name}")
        if claim is not None:
            yield claim


def _unbound_claims(storage: Storage, task: Task) -> Iterator[VolumeClaim]:
    """The claims that are bound before a pod uses them, and are not."""
    for claim in _claims(storage, task):
        if not (claim.bound or claim.lost or claim.deleting) and (claim.volume_name or not _waits(storage, claim)):
            yield claim


def _waits(storage: Storage, claim: VolumeClaim) -> bool:
    of_class = storage.classes.get(claim.class_name)
    return of_class is not None and of_class.waits_for_consumer


def _is_coming(storage: Storage, claim: VolumeClaim) -> bool:
    if claim.volume_name:
        volume = storage.volumes.get(claim.volume_name)
        return volume is not None and (volume.claim is None or volume.is_reserved_for(claim))
    of_class = storage.classes.get(claim.class_name)
    return of_class is not None and of_class.provisions


def _unbound(storage: Storage, claim: VolumeClaim) -> str:
    name = escaped(claim.class_name)
    if claim.volume_name:
        volume, own = storage.volumes.get(claim.volume_name), f"PersistentVolume {escaped(claim.volume_name)}"
        if volume is None:
            return f"{own} does not exist"
        if volume.claim is not None and not volume.is_reserved_for(claim):
            return f"{own} belongs to claim {escaped(volume.claim.namespace)}/{escaped(volume.claim.name)}"
        return f"{own} is not bound to it yet"
    if not name:
        return "it has no StorageClass, and no PersistentVolume without one is bound to it"
    of_class = storage.classes.get(claim.class_name)
    if of_class is None:
        return f"StorageClass {name} does not exist{hint(claim.class_name, storage.classes)}"
    if not of_class.provisions:
        return f"StorageClass {name} provisions no volumes, and no PersistentVolume of it is bound to the claim"
    return f"provisioner {escaped(of_class.provisioner)} of StorageClass {name} has not provisioned its volume"


def _provisions(storage: Storage, claim: VolumeClaim) -> str:
    of_class = storage.classes.get(claim.class_name)
    return "" if of_class is None or of_class.provisions else ", which provisions no volumes"
