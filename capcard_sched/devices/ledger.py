"""The ledger of devices: which of them allocations of claims use, written or assumed.

An assumed allocation is one of this scheduler that the API does not show yet. It counts like a written one. `forget` is
the exact inverse of `assume`, and `stay` that of `leave`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from capcard_sched.devices.double_allocations import DoubleAllocations
from capcard_sched.devices.searches import SearchCounts
from capcard_sched.devices.usage import DeviceUsage
from capcard_sched.model.binding_conditions import has_binding_conditions
from capcard_sched.model.device_objects import Allocation
from capcard_sched.model.selectors import NAME_FIELD

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from capcard_sched.devices.claims import Claim
    from capcard_sched.devices.inventory import DeviceInventory


class Assumed(msgspec.Struct):
    """What this scheduler decided for a claim."""

    #: None: the claim was allocated before, and is reserved only.
    allocation: Allocation | None
    #: Uids of the pods that it is to be reserved for.
    consumers: set[str]


class DeviceLedger(DeviceUsage):
    """Claims and the devices in use now, and in the future: once leaving pods are gone."""

    def __init__(self, inventory: DeviceInventory) -> None:
        super().__init__(inventory)
        #: By `namespace/name`.
        self.claims: dict[str, Claim] = {}
        self.assumed: dict[str, Assumed] = {}
        #: The devices in use without those of claims all of whose pods leave.
        self.future = DeviceUsage(inventory)
        #: Uids of the pods that leave, with the keys of their claims.
        self.leaving: dict[str, tuple[str, ...]] = {}
        #: Number of the claims with a written allocation.
        self.allocated_claims = 0
        self.searches, self.doubled = SearchCounts(), DoubleAllocations()
        #: Keys of the claims whose devices the future does not count, with their allocations.
        self._freed: dict[str, Allocation] = {}
        #: Namespace and uid of a pod to the key of the claim that has the devices for its extended resources.
        self.extended: dict[tuple[str, str], str] = {}
        #: Keys of the claims with devices that are prepared after their written allocation.
        self.prepared: set[str] = set()

    def allocation(self, key: str) -> Allocation | None:
        """The allocation of a claim, written or assumed."""
        claim, assumed = self.claims.get(key), self.assumed.get(key)
        if assumed is not None and assumed.allocation is not None:
            return assumed.allocation
        return claim.allocation if claim is not None else None

    def consumers(self, key: str) -> set[str]:
        """Uids of the pods of a claim, written or assumed."""
        claim, assumed = self.claims.get(key), self.assumed.get(key)
        found = set(claim.consumers) if claim is not None else set()
        return found | assumed.consumers if assumed is not None else found

    def assumed_claims(self) -> int:
        """The number of claims whose allocation is assumed only. O(assumed ones)."""
        return sum(
            1
            for key, assumed in self.assumed.items()
            if assumed.allocation is not None and key in self.claims and self.claims[key].allocation is None
        )

    # --- objects ----------------------------------------------------------------------------------------------------

    def apply(self, claim: Claim) -> None:
        """Adds or updates a claim. Its allocation replaces an assumed one."""
        self._retain(claim.key)
        known, assumed = self.claims.get(claim.key), self.assumed.get(claim.key)
        if assumed is not None and known is not None and known.uid != claim.uid:
            self._drop_assumed(claim.key)
        if known is not None:
            self._use(known.allocation, -1)
        written = known.allocation if known is not None else None
        self.allocated_claims += (claim.allocation is not None) - (written is not None)
        self.doubled.replace(claim.key, written, claim.allocation)
        if claim.allocation is not None and assumed is not None and assumed.allocation is not None:
            self._use(assumed.allocation, -1)
            assumed.allocation = None
        self._index(known, claim)
        self.claims[claim.key] = claim
        self.prepared.discard(claim.key)
        if has_binding_conditions(claim.allocation):
            self.prepared.add(claim.key)
        self._use(claim.allocation, +1)
        self._free(claim.key)

    def drop(self, key: str) -> None:
        """Removes a claim."""
        self._retain(key)
        claim = self.claims.pop(key, None)
        self._index(claim, None)
        self.prepared.discard(key)
        self._drop_assumed(key)
        if claim is not None:
            self._use(claim.allocation, -1)
            self.allocated_claims -= claim.allocation is not None
            self.doubled.replace(key, claim.allocation, None)

    def _index(self, before: Claim | None, claim: Claim | None) -> None:
        """Updates `extended`; its owner is the pod of such a claim."""
        if before is not None and before.extended and before.owner is not None:
            owner = before.namespace, before.owner.uid
            if self.extended.get(owner) == before.key:
                del self.extended[owner]
        if claim is not None and claim.extended and claim.owner is not None and claim.owner.kind == "Pod":
            self.extended[claim.namespace, claim.owner.uid] = claim.key

    def _drop_assumed(self, key: str) -> None:
        assumed = self.assumed.pop(key, None)
        if assumed is not None:
            self._use(assumed.allocation, -1)

    # --- decisions --------------------------------------------------------------------------------------------------

    def assume(self, key: str, allocation: Allocation | None, consumer: str) -> None:
        """Assumes an allocation (None: the one it has) and a consumer of a claim."""
        self._retain(key)
        assumed = self.assumed.get(key)
        if assumed is None:
            assumed = self.assumed[key] = Assumed(None, set())
        if allocation is not None:
            assumed.allocation = allocation
            self._use(allocation, +1)
        assumed.consumers.add(consumer)
        self._free(key)

    def forget(self, key: str, consumer: str) -> None:
        """Undoes `assume`; an assumed allocation ends with its last assumed consumer."""
        assumed = self.assumed.get(key)
        if assumed is None:
            return
        self._retain(key)
        assumed.consumers.discard(consumer)
        if not assumed.consumers:
            self._drop_assumed(key)
        self._free(key)

    def _use(self, allocation: Allocation | None, sign: int) -> None:
        self.use(allocation, sign)
        self.future.use(allocation, sign)

    # --- pods that leave --------------------------------------------------------------------------------------------

    def leave(self, pod: str, keys: Iterable[str]) -> None:
        """A pod with these claims leaves: the future has the devices that no other pod holds."""
        self.leaving[pod] = tuple(keys)
        for key in self.leaving[pod]:
            self._free(key)

    def stay(self, pod: str) -> None:
        """Undoes `leave`."""
        for key in self.leaving.pop(pod, ()):
            self._retain(key)
            self._free(key)

    @contextmanager
    def retained(self, keys: Iterable[str]) -> Iterator[None]:
        """While it is open, the future counts the devices of these claims as in use."""
        freed = [key for key in keys if key in self._freed]
        for key in freed:
            self._retain(key)
        try:
            yield
        finally:
            for key in freed:
                self._free(key)

    def _free(self, key: str) -> None:
        """Lets the future have the devices of a claim, if all its pods leave and only their node reaches them."""
        if not self.leaving or key in self._freed:
            return
        allocation, consumers = self.allocation(key), self.consumers(key)
        if allocation is None or not consumers or any(key not in self.leaving.get(pod, ()) for pod in consumers):
            return
        if is_of_one_node(allocation):
            self._freed[key] = allocation
            self.future.use(allocation, -1)

    def _retain(self, key: str) -> None:
        """Counts the devices of a claim as in use in the future."""
        self.future.use(self._freed.pop(key, None), +1)


def is_of_one_node(allocation: Allocation) -> bool:
    """Whether only one node can use the devices."""
    selector = allocation.node_selector
    terms = (selector.node_selector_terms or ()) if selector is not None else ()
    return len(terms) == 1 and any(
        each.key == NAME_FIELD and each.operator == "In" and len(each.values or ()) == 1
        for each in terms[0].match_fields or ()
    )
