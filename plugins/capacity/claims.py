"""Devices of ResourceClaims in the sums of queues: what a claim is charged, and which claims the pods of a queue hold.

A claim is charged what its requests name of a DeviceClass: a number of devices, and that number times each requested
capacity. It counts once in a queue and once in each queue above, however many pods use it.
"""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import TYPE_CHECKING, Final

from capcard_sched.devices.claims import AllocationError, Claim
from capcard_sched.devices.totals import device_pools, fitting_devices
from capcard_sched.framework.quota.limits import UNLIMITED
from capcard_sched.framework.toolkit.device_cards import claim_of, may_match
from capcard_sched.model.cards import CARD
from capcard_sched.model.device_objects import ALL, DeviceClaim, DeviceRequest, ExactRequest
from capcard_sched.model.device_quota import device_quota_key
from capcard_sched.model.quantity import MAX_POD_AMOUNT, QuantityError, parse_quantity
from capcard_sched.model.status import ALLOCATED_STATUSES, BOUND_STATUSES, TaskStatus
from capcard_sched.model.unsupported import device_class_of
from capcard_sched.plugins.capacity.charges import ALLOCATED, NOMINATED, RELEASING, ClaimCharge

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from capcard_sched.devices.inventory import DeviceInventory, PoolDevice
    from capcard_sched.framework.quota.limits import Needs
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.device_objects import Allocation
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.capacity.tree import Branch


class ClaimAmounts:
    """The charges of claims and of the classes of pods, for the resources that queues name."""

    def __init__(self, *, counts: bool, capacities: bool) -> None:
        """`counts`: queues limit numbers of devices; `capacities`: sums of capacities, too."""
        self._counts, self._capacities = counts, counts and capacities
        #: DeviceClass to the columns by capacity, "" for the number of devices.
        self.columns: dict[str, dict[str, int]] = {}
        self._names = 0
        self._session: Session
        #: Version of the devices, and amounts of the cluster by column, as of `totals`.
        self._totals: tuple[int, dict[int, int]] = (-1, {})
        #: Extended resources that some node offers by devices, for one state of the nodes.
        self._backed: tuple[int, frozenset[str]] = (-1, frozenset())

    def open(self, session: Session) -> None:
        self._session = session
        resources = session.resources
        if self._names == len(resources) or not self._counts:
            return
        self._names = len(resources)
        self.columns = {}
        for column, name in enumerate(resources.names):
            key = device_quota_key(name)
            if key is not None and (self._capacities or not key.dimension):
                self.columns.setdefault(key.class_name, {})[key.dimension] = column

    @property
    def all_columns(self) -> list[int]:
        return [column for columns in self.columns.values() for column in columns.values()]

    # --- charges -----------------------------------------------------------------------------------------------------

    def of_class(self, cls: TaskClass) -> list[ClaimCharge]:
        """The charges of the claims that the pods of a class name, each claim once."""
        found: dict[str, ClaimCharge] = {}
        snapshot = self._session.snapshot
        for number, each in enumerate(cls.claims if self.columns else ()):
            claim = claim_of(cls.namespace, each, snapshot.claims.claims, snapshot.claim_templates)
            key = f"{cls.namespace}/{each.claim}" if each.claim else ""
            charge = ClaimCharge(key, is_own=bool(each.template))
            if claim is not None:
                charge = self._of_claim(claim, charge, snapshot.claims.allocation(key) if key else None)
            found[key or f" {number}"] = charge
        return list(found.values())

    def of_task(self, task: Task, node: Node | None) -> list[ClaimCharge]:
        """The charges of a pod on a node, with the claim for its extended resources."""
        found = self.of_class(task.cls)
        if not self.columns or not task.cls.device_containers:
            return found
        claims = self._session.snapshot.claims
        claim = claims.claims.get(claims.extended.get((task.namespace, task.uid), ""))
        charge = ClaimCharge(f"{task.namespace}/{task.uid} extended resources")
        if claim is not None:
            return [*found, self._of_claim(claim, charge, claim.allocation)]
        if node is None or not node.known:
            amounts = self._of_resources(task.cls, self._backed_resources())
        else:
            amounts = self._of_resources(task.cls, node.backed)
        return [*found, charge._replace(amounts=tuple(sorted(amounts.items())))] if amounts else found

    def needs_of(self, cls: TaskClass) -> ClaimNeeds:
        """What pods without a node need. Their extended resources count as if they got devices for them."""
        has_resources = bool(self.columns and cls.device_containers)
        extended = self._of_resources(cls, self._backed_resources()) if has_resources else {}
        return ClaimNeeds(self.of_class(cls), extended)

    def _of_resources(self, cls: TaskClass, backed: Iterable[str]) -> Mapping[int, int]:
        """The numbers of devices by column for the extended resources among `backed`."""
        found: Counter[int] = Counter()
        by_resource = self._session.snapshot.device_classes
        for resource in backed:
            column = self.columns.get(device_class_of(resource, by_resource), {}).get("")
            if column is not None and cls.requests.get(resource, 0) > 0:
                found[column] += -(-cls.requests[resource] // CARD) * CARD
        return found

    def _backed_resources(self) -> frozenset[str]:
        nodes = self._session.nodes
        if self._backed[0] != nodes.generation:
            self._backed = nodes.generation, frozenset(name for node in nodes.nodes for name in node.backed)
        return self._backed[1]

    def _of_claim(self, claim: Claim, charge: ClaimCharge, allocation: Allocation | None) -> ClaimCharge:
        """`charge` with the amounts of a claim.

        A request with alternatives is charged the chosen one, before its allocation the largest amounts of all of them.
        One for all devices is charged the devices it has.
        """
        results = Counter(one.request for one in (allocation.devices.results or ())) if allocation is not None else None
        total, unbounded = Counter[int](), dict[int, str]()
        for request in claim.spec.requests or ():
            widest = Counter[int]()
            for each, name in _alternatives(request):
                columns = self.columns.get(each.device_class_name)
                if columns is None or (results is not None and request.exactly is None and name not in results):
                    continue
                if each.allocation_mode == ALL and results is None:
                    unbounded |= dict.fromkeys(columns.values(), name)
                    continue
                count = max(each.count, 1) if results is None or each.allocation_mode != ALL else results[name]
                widest |= Counter(_of_request(each, count, columns))  # the larger ones
            total.update(widest)
        amounts = tuple([(column, min(amount, MAX_POD_AMOUNT)) for column, amount in sorted(total.items()) if amount])
        return charge._replace(amounts=amounts, unbounded=tuple(sorted(unbounded.items())))

    # --- minimums ----------------------------------------------------------------------------------------------------

    def of_minimum(self, job: Job, *, gated: bool, whole: bool) -> Iterator[ClaimCharge]:
        """The charges of the pods that a job lacks for its minimum, in order of their names, each claim once.

        `gated`: with pods that have scheduling gates; `whole`: of all pods of the minimum.
        """
        tasks = [task for task in job.tasks.values() if task.cls.claims or task.cls.device_containers]
        if not self.columns or not tasks:
            return
        by_role = job.checks_roles
        left = Counter(job.min_task_member) if by_role else Counter({"": job.min_available})
        if not whole:
            left.subtract(task.role if by_role else "" for task in job.tasks.values() if kind_of(task) == ALLOCATED)
            tasks = [task for task in tasks if task.status is TaskStatus.PENDING and (gated or not task.gated)]
        seen: set[str] = set()
        for task in sorted(tasks, key=lambda task: (task.name, task.uid)):
            role = task.role if by_role else ""
            if left[role] <= 0:
                continue
            left[role] -= 1
            for charge in self.of_task(task, task.node):
                if not charge.key or charge.key not in seen:
                    seen.add(charge.key)
                    yield charge

    def missing(self, job: Job, *, gated: bool, held: Container[str] | None) -> dict[int, int]:
        """What a job lacks for its minimum by column: claims of its pods, and the rest of `minResources`.

        `held`: claims that count already; None: those that are allocated.
        """
        found: Counter[int] = Counter()
        allocation = self._session.snapshot.claims.allocation
        for charge in self.of_minimum(job, gated=gated, whole=False):
            if not (charge.key and (allocation(charge.key) is not None if held is None else charge.key in held)):
                found.update(dict(charge.amounts))
        names = self._session.resources.names
        written = {column: job.min_resources.get(names[column], 0) for column in self.all_columns if job.min_resources}
        if any(written.values()):
            own = self.of_placed(job)
            for column, amount in written.items():
                found[column] = max(found[column], amount - own.get(column, 0), 0)
        return {column: amount for column, amount in sorted(found.items()) if amount}

    def of_placed(self, job: Job) -> Mapping[int, int]:
        """The amounts by column of the claims that placed pods of a job hold."""
        held: dict[str, ClaimCharge] = {}
        for task in job.tasks.values():
            if kind_of(task) in (ALLOCATED, RELEASING) and (task.cls.claims or task.cls.device_containers):
                held.update((charge.key, charge) for charge in self.of_task(task, task.node))
        found: Counter[int] = Counter()
        for charge in held.values():
            found.update(dict(charge.amounts))
        return found

    # --- totals ------------------------------------------------------------------------------------------------------

    def totals(self, columns: Iterable[int]) -> dict[int, int]:
        """What the cluster has of some of the resources. O(devices x classes) after a change of devices."""
        wanted, inventory = set(columns).intersection(self.all_columns), self._session.snapshot.devices
        version, found = self._totals
        if version != inventory.version or not wanted <= found.keys():
            found = {}
            for class_name, by_dimension in self.columns.items():
                if not wanted.isdisjoint(by_dimension.values()):
                    found |= _class_totals(inventory, class_name, by_dimension)
            self._totals = inventory.version, found
        return {column: found[column] for column in wanted}


def _alternatives(request: DeviceRequest) -> list[tuple[ExactRequest, str]]:
    if request.exactly is not None:
        return [(request.exactly, request.name)]
    return [(each, f"{request.name}/{each.name}") for each in request.first_available or ()]


def _of_request(each: ExactRequest, count: int, columns: Mapping[str, int]) -> dict[int, int]:
    """Amounts by column of a request for a number of devices; predicates refuses a quantity that cannot be read."""
    requested = (each.capacity.requests if each.capacity is not None else None) or {}
    found: dict[int, int] = {}
    for dimension, column in columns.items():
        if not dimension:
            found[column] = count * CARD
        elif dimension in requested:
            try:
                found[column] = max(0, ceil(parse_quantity(requested[dimension]) * count))
            except QuantityError:
                found[column] = 0
    return found


def _class_totals(inventory: DeviceInventory, class_name: str, columns: Mapping[str, int]) -> dict[int, int]:
    """What the pools give by column. Shared devices serve any number of requests."""
    request = DeviceRequest("all", ExactRequest(device_class_name=class_name))
    claim = Claim("", "", "", None, False, DeviceClaim((request,)), None, frozenset())
    found = dict.fromkeys(columns.values(), 0)
    try:
        plan = inventory.plans.of(claim).requests[0][0]
    except AllocationError:
        return found
    for _, slices in device_pools(inventory):
        counters = {counter: amount for each in slices for counter, amount in each.counters.items()}
        devices = [device for each in slices for device in each.devices if may_match(plan, device)]
        for dimension, column in columns.items():
            if dimension:
                found[column] += ceil(sum(_capacity(device, dimension) for device in devices))
            elif any(device.is_shared for device in devices) or found[column] == UNLIMITED:
                found[column] = UNLIMITED
            else:
                found[column] += fitting_devices(devices, counters, {}) * CARD
    return found


def _capacity(device: PoolDevice, dimension: str) -> int:
    capacities = device.content.capacities
    return ceil(capacities[dimension].value) if isinstance(capacities, dict) and dimension in capacities else 0


class ClaimBook:
    """The claims that the pods of each job hold, as counted in the queues."""

    def __init__(self, amounts: ClaimAmounts) -> None:
        self._amounts = amounts
        #: By job: its branch, and the number of its pods by claim and kind.
        self._jobs: dict[str, tuple[Branch, Counter[tuple[str, int]]]] = {}
        #: What each held claim is charged.
        self._charges: dict[str, ClaimCharge] = {}
        #: Claim to the number of jobs that hold it.
        self._holders: dict[str, set[str]] = {}

    def clear(self) -> None:
        """Forget everything: the branches are new."""
        self._jobs.clear()
        self._charges.clear()
        self._holders.clear()

    def users(self, keys: Iterable[str]) -> set[str]:
        """The jobs that hold some of these claims."""
        return {job for key in keys for job in self._holders.get(key, ())}

    def recount(self, key: str, job: Job | None, branch: Branch | None) -> None:
        """Count the claims of a job anew; None: it left the session."""
        wanted: Counter[tuple[str, int]] = Counter()
        for task in job.tasks.values() if job is not None and branch is not None else ():
            kind = kind_of(task)
            if kind is not None and (task.cls.claims or task.cls.device_containers):
                for charge in self._amounts.of_task(task, task.node):
                    if charge.key:
                        wanted[charge.key, kind] += 1
                        self._price(charge)
        before = self._jobs.get(key)
        if before is not None and before[0] is not branch:
            self._post(key, before[0], {each: -count for each, count in before[1].items()})
            before = None
        known = before[1] if before is not None else Counter[tuple[str, int]]()
        if branch is not None and (wanted or known):
            self._post(key, branch, {each: wanted[each] - known[each] for each in sorted({*wanted, *known})})

    def move(self, job: Job, branch: Branch, changes: Iterable[tuple[Task, Node, int, int]]) -> None:
        """Count pods of this session: of each the kind, and +1 or -1."""
        for task, node, kind, by in changes:
            for charge in self._amounts.of_task(task, node):
                if charge.key:
                    self._charges.setdefault(charge.key, charge)
                    self._post(job.key, branch, {(charge.key, kind): by})

    def _price(self, charge: ClaimCharge) -> None:
        """Note what a claim is charged; where another amount was counted, count this one instead."""
        known = self._charges.get(charge.key)
        self._charges[charge.key] = charge
        if known is None or known.amounts == charge.amounts:
            return
        branches = {above for job in self._holders.get(charge.key, ()) for above in self._jobs[job][0].chain()}
        for branch in branches:
            held = branch.claims[charge.key]
            branch.count_claim(held.amounts, tuple([-part for part in held.parts]))
            held.amounts = charge.amounts
            branch.count_claim(held.amounts, held.parts)

    def _post(self, key: str, branch: Branch, changes: Mapping[tuple[str, int], int]) -> None:
        _, counts = self._jobs.setdefault(key, (branch, Counter()))
        for (claim, kind), by in changes.items():
            if not by:
                continue
            branch.hold_claim(self._charges[claim], kind, by)
            counts[claim, kind] += by
            if not counts[claim, kind]:
                del counts[claim, kind]
            holders = self._holders.setdefault(claim, set())
            if any((claim, each) in counts for each in (ALLOCATED, NOMINATED, RELEASING)):
                holders.add(key)
            else:
                holders.discard(key)
                if not holders:
                    del self._holders[claim], self._charges[claim]
        if not counts:
            del self._jobs[key]


def kind_of(task: Task) -> int | None:
    """The kind of a pod; None for one that holds no claim."""
    if task.status in ALLOCATED_STATUSES:
        return ALLOCATED
    if task.status is TaskStatus.PIPELINED:
        return NOMINATED
    return RELEASING if task.status in BOUND_STATUSES and task.node is not None else None


#: The pods that a bound admits where further ones add nothing: those that share a claim.
_ANY: Final = 2**31


class ClaimNeeds:
    """What pods of one class need of the devices of classes, against the sums of queues."""

    def __init__(self, charges: Sequence[ClaimCharge], extended: Mapping[int, int]) -> None:
        """`extended`: the amounts by column of each pod for its extended resources."""
        self._charges, self._extended = charges, extended
        #: Whether each pod has a claim of its own.
        self._is_own = any(charge.is_own for charge in charges)

    def __bool__(self) -> bool:
        return bool(self._charges or self._extended)

    def at(self, branch: Branch, *, nominating: bool) -> dict[int, int]:
        """What the first pod adds to a branch, by column. `nominating`: claims of leaving pods count anew."""
        found = Counter(self._extended)
        for charge in self._charges:
            held = branch.claims.get(charge.key) if charge.key else None
            if held is None or (nominating and not held.parts[1]):
                found.update(dict(charge.amounts))
        return dict(sorted(found.items()))

    def pods_within(self, column: int, room: int, first: int) -> int:
        """The pods that fit into `room`, of which the first adds `first`. Further ones share its claims."""
        if self._is_own:
            return room // first
        each = self._extended.get(column, 0)
        if room < first:
            return 0
        return 1 + (room - first) // each if each else _ANY


class LeavingClaims:
    """What victims of one decision give back of claims: the last pod of a claim in its queue gives it back."""

    def __init__(self, amounts: ClaimAmounts, names: Sequence[str]) -> None:
        self._amounts, self._names = amounts, names
        #: Number of the victims so far by branch and claim.
        self._gone: Counter[tuple[Branch, str]] = Counter()

    def given_back(self, task: Task, branch: Branch) -> Needs:
        """Resource, column and amount of its claims; 0 of those that other pods of the branch hold."""
        return self._needs(task, branch, is_whole=False)

    def taken_again(self, task: Task, branch: Branch) -> Needs:
        """What it would need to come back."""
        return self._needs(task, branch, is_whole=True)

    def leave(self, task: Task, branch: Branch) -> None:
        """A pod is a victim."""
        for charge in self._held(task, branch):
            self._gone[branch, charge.key] += 1

    def _held(self, task: Task, branch: Branch) -> list[ClaimCharge]:
        return [charge for charge in self._amounts.of_task(task, task.node) if charge.key in branch.claims]

    def _needs(self, task: Task, branch: Branch, *, is_whole: bool) -> Needs:
        found: Counter[int] = Counter()
        for charge in self._held(task, branch):
            pods = branch.claims[charge.key].pods[ALLOCATED] - self._gone[branch, charge.key]
            counts = is_whole or pods <= 1
            found.update({column: amount * counts for column, amount in charge.amounts})
        return [(self._names[column], column, amount) for column, amount in sorted(found.items())]
