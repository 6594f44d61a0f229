"""The cards that pods hold by ResourceClaims, and those that ResourceSlices provide, from the objects of a cluster."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from capcard_sched.devices.claim_record import ClaimRecord, read_record
from capcard_sched.devices.device_card import card_of
from capcard_sched.devices.held_devices import held_cards_of, held_devices
from capcard_sched.devices.inventory import DeviceInventory
from capcard_sched.devices.totals import fitting_devices, usable_slices
from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS
from capcard_sched.model.cards import CARD
from capcard_sched.model.deltas import ObjectChanged, ObjectGone
from capcard_sched.model.device_objects import ResourceClaimObject, ResourceSliceObject
from capcard_sched.model.held_cards import NO_CARDS, HeldCards, held_cards
from capcard_sched.model.pod_claims import pod_claims
from capcard_sched.model.pod_requests import AmountsReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from capcard_sched.devices.inventory import PoolDevice
    from capcard_sched.devices.pool_changes import PoolId
    from capcard_sched.model.card_labels import CardLabels
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.device_objects import ResourceClaimStatus
    from capcard_sched.model.held_cards import NodeInventory
    from capcard_sched.model.objects import PodObject

_CLAIMS: Final = "ResourceClaims"


class ClaimedCards:
    """Follows ResourceSlices and ResourceClaims. A change costs O(its object)."""

    def __init__(self) -> None:
        self._inventory = DeviceInventory()
        #: By `namespace/name`.
        self._claims: dict[str, ResourceClaimStatus] = {}
        self._records: dict[str, ClaimRecord] = {}
        self._amounts = AmountsReader()
        #: Serial of the slices up to which `capacities` was read.
        self._read = 0
        #: The pools for which `capacities` yielded devices last.
        self._yielded: set[PoolId] = set()

    def apply(self, delta: Delta) -> str:
        """Notes a slice or claim; other objects have no effect. Returns the key of a claim that changed, else ""."""
        match delta:
            case ObjectChanged(ResourceSliceObject() as found):
                self._inventory.apply_slice(found)
            case ObjectGone("ResourceSlice", _, name):
                self._inventory.drop_slice(name)
            case ObjectChanged(ResourceClaimObject(meta, _, status)):
                key = f"{meta.namespace or 'default'}/{meta.name}"
                self._claims[key] = status
                self._records[key] = read_record(meta.annotations or {})
                return key
            case ObjectGone("ResourceClaim", namespace, name):
                self._claims.pop(f"{namespace}/{name}", None)
                self._records.pop(f"{namespace}/{name}", None)
                return f"{namespace}/{name}"
            case _:
                pass
        return ""

    def held(
        self, pod: PodObject, node: NodeInventory | None, card_labels: CardLabels = DEFAULT_CARD_LABELS
    ) -> HeldCards:
        """The cards of a bound pod: by extended resources, annotations of shares, or claims. Never raises.

        `node`: None for one that is not known. `uncounted` names claims with further cards: of a device that is
        unknown, of a claim that is not allocated yet, or whose first consumer is another pod.
        Extended resources for which the pod has a claim are the devices of that claim, once they are known.
        """
        self._inventory.name_cards(card_labels.drivers)
        found = held_cards(pod, node, card_labels, reader=self._amounts)
        extended = pod.status.extended_resource_claim_status
        if not pod.spec.resource_claims and extended is None:
            return found
        claimed = self._claimed(pod)
        if extended is not None:
            if not claimed.thousandths and claimed.uncounted:
                return found._replace(uncounted=_CLAIMS)
            found = held_cards(pod, node, card_labels, without=extended.resources)
        if not found.thousandths or not (claimed.thousandths or claimed.uncounted):
            return claimed if found is NO_CARDS else found
        return HeldCards.of(Counter(dict(found.cards)) + Counter(dict(claimed.cards)), claimed.uncounted)

    def _claimed(self, pod: PodObject) -> HeldCards:
        found, is_complete = Counter[str](), True
        extended = pod.status.extended_resource_claim_status
        for key in claim_keys(pod):
            # Quotas count extended resources as whole cards, whatever part of a shared device serves them.
            is_whole = extended is not None and key.endswith(f"/{extended.resource_claim_name}")
            status = self._claims.get(key)
            if status is None or status.allocation is None or not _is_first(pod, status):
                is_complete = False
                continue
            devices = held_devices(status.allocation, self._inventory, is_whole=is_whole)
            held = held_cards_of(ClaimRecord() if is_whole else self._records[key], devices)
            is_complete = is_complete and held is not None
            found.update(devices.cards if held is None else held)
        uncounted = "" if is_complete else _CLAIMS
        return HeldCards.of(found, uncounted) if found or uncounted else NO_CARDS

    def capacities(
        self, card_labels: CardLabels = DEFAULT_CARD_LABELS
    ) -> Iterator[tuple[PoolId, Mapping[tuple[str, str], int]]]:
        """Each pool that changed since the last call, with the thousandths that it provides by node and card.

        Node "": devices that several nodes reach. Partitions exclude each other: it counts what an empty pool can give.
        """
        self._inventory.name_cards(card_labels.drivers)
        known = chain(self._yielded, self._inventory.pool_ids)
        pools = sorted({*self._inventory.changes.since(self._read, known)})
        self.forget_changes()
        for pool in pools:
            provided = self._provided(pool)
            self._yielded.add(pool) if provided else self._yielded.discard(pool)
            yield pool, provided

    def forget_changes(self) -> None:
        """The pools that changed so far are not read."""
        self._read = self._inventory.changes.serial

    def _provided(self, pool: PoolId) -> Mapping[tuple[str, str], int]:
        slices = usable_slices(self._inventory, pool)
        counters = {counter: amount for each in slices for counter, amount in each.counters.items()}
        devices: dict[tuple[str, str], list[PoolDevice]] = {}
        for each in slices:
            for device in each.devices:
                if card := card_of(device):
                    devices.setdefault((each.node or device.spec.node_name or "", card), []).append(device)
        return {place: fitting_devices(found, counters, {}) * CARD for place, found in devices.items()}


def claim_keys(pod: PodObject) -> list[str]:
    """`namespace/name` of the claims of a pod that exist; that for extended resources last."""
    namespace, extended = pod.metadata.namespace or "default", pod.status.extended_resource_claim_status
    names = [each.claim for each in pod_claims(pod) if each.claim]
    if extended is not None and extended.resource_claim_name:
        names.append(extended.resource_claim_name)
    return [f"{namespace}/{name}" for name in names]


K = TypeVar("K", str, tuple[str, str])


class UnclearPods(Generic[K]):
    """Bound pods whose charge is complete only with the allocations of their claims."""

    def __init__(self) -> None:
        self._pods: dict[K, PodObject] = {}
        #: Claim to the pods that wait for its allocation.
        self._awaiting: dict[str, set[K]] = {}

    def add(self, key: K, pod: PodObject) -> None:
        self._pods[key] = pod
        for claim in claim_keys(pod):
            self._awaiting.setdefault(claim, set()).add(key)

    def get(self, key: K) -> PodObject | None:
        return self._pods.get(key)

    def drop(self, key: K) -> None:
        """The charge of a pod waits for no allocation any more."""
        pod = self._pods.pop(key, None)
        for claim in claim_keys(pod) if pod is not None else ():
            keys = self._awaiting.get(claim, set())
            keys.discard(key)
            if not keys:
                self._awaiting.pop(claim, None)

    def pop_of(self, claim: str) -> dict[K, PodObject]:
        """Drops and returns the pods that wait for a claim, by key."""
        found = {key: self._pods[key] for key in sorted(self._awaiting.get(claim, ()))}
        for key in found:
            self.drop(key)
        return found


def _is_first(pod: PodObject, status: ResourceClaimStatus) -> bool:
    """Whether a claim counts for this pod: for one of several that share it."""
    return bool(status.reserved_for) and (status.reserved_for or ())[0].uid == pod.metadata.uid
