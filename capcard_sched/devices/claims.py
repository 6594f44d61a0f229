"""Claims as the scheduler reads them, and the plan of their requests that the allocator follows."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from capcard_sched.cel.program import Program
from capcard_sched.devices.claim_record import ClaimRecord, read_record
from capcard_sched.devices.selectors import compile_selector, qualified, read_attributes
from capcard_sched.model.device_objects import (
    ALL,
    EXACT_COUNT,
    EXTENDED_CLAIM,
    MAX_ALTERNATIVES,
    Allocation,
    DeviceClaim,
)
from capcard_sched.model.ownership import Owner, controller_of_meta
from capcard_sched.model.quantity import QuantityError, parse_quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from fractions import Fraction

    from capcard_sched.devices.searches import Result
    from capcard_sched.model.device_objects import (
        DeviceClassObject,
        DeviceConstraint,
        DeviceRequest,
        DeviceSelector,
        ExactRequest,
        ResourceClaimObject,
    )
    from capcard_sched.model.objects import Toleration


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
#: Bytes of the size of a spec, at the end of its content.
_SIZE: Final = 8


class AllocationError(Exception):
    """A claim cannot be allocated on any node, whatever its devices."""

    def __init__(self, text: str, result: Result = "invalid_claim") -> None:
        super().__init__(text)
        self.result = result


class Claim(msgspec.Struct, frozen=True):
    """One ResourceClaim."""

    namespace: str
    name: str
    uid: str
    #: The controller: the pod of a claim of a template.
    owner: Owner | None
    deleting: bool
    spec: DeviceClaim
    #: None: not allocated.
    allocation: Allocation | None
    #: Uids of the pods that it is reserved for.
    consumers: frozenset[str]
    resource_version: str = ""
    #: Of the spec, as of `content_of`; b"" while it is unknown.
    content: bytes = b""
    #: Whether it has the devices for the extended resources of its owner.
    extended: bool = False
    #: Uid of the pod for which it was reserved first; "" for none.
    first_consumer: str = ""
    #: Of its allocation.
    record: ClaimRecord = ClaimRecord()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


def claim_facts(obj: ResourceClaimObject) -> Claim:
    """The facts of a claim."""
    meta, status = obj.metadata, obj.status
    return Claim(
        meta.namespace or "default",
        meta.name,
        meta.uid,
        controller_of_meta(meta),
        bool(meta.deletion_timestamp),
        obj.spec.devices,
        status.allocation,
        frozenset(each.uid for each in status.reserved_for or ()),
        meta.resource_version,
        content_of(obj.spec.devices),
        (meta.annotations or {}).get(EXTENDED_CLAIM) == "true",
        next((each.uid for each in status.reserved_for or ()), ""),
        read_record(meta.annotations or {}) if status.allocation is not None else ClaimRecord(),
    )


def content_of(spec: DeviceClaim) -> bytes:
    """The digest of a spec, and its bytes: claims of equal content have equal plans.

    Caches keep contents of claims that are gone: a spec may have a megabyte.
    """
    text = _encode(spec)
    return hashlib.blake2b(text, digest_size=24).digest() + len(text).to_bytes(_SIZE, "big")


def _size_of(content: bytes) -> int:
    return int.from_bytes(content[-_SIZE:], "big")


class SharedSpecs:
    """Equal specs of claims as one object: those of one template."""

    def __init__(self) -> None:
        self._specs: dict[bytes, tuple[bytes, DeviceClaim]] = {}
        #: Bytes of the specs, and of those in use when the others were dropped.
        self._bytes = self._bytes_in_use = 0

    def share(self, claim: Claim, claims: Mapping[str, Claim]) -> Claim:
        """The claim with the spec of an earlier one; `claims` are all that may refer to shared specs."""
        if len(self._specs) > 2 * len(claims) + _SPARE or self._bytes > 2 * self._bytes_in_use + _SPARE_BYTES:
            self._specs = {each.content: (each.content, each.spec) for each in claims.values()}
            self._bytes = self._bytes_in_use = sum(map(_size_of, self._specs))
        if claim.content not in self._specs:
            self._bytes += _size_of(claim.content)
        content, spec = self._specs.setdefault(claim.content, (claim.content, claim.spec))
        return claim if spec is claim.spec else msgspec.structs.replace(claim, content=content, spec=spec)


class Selector(NamedTuple):
    """One selector of a class or request."""

    program: Program
    #: The attributes that it may read, without their domains; None for all.
    reads: frozenset[str] | None
    #: Position among the selectors of its class, or of its request.
    number: int
    #: "" for one of a request.
    class_name: str = ""
    #: The number of selectors of its claim; 0 for one of a class.
    among: int = 0

    def source(self, claim: str) -> str:
        """Begin of the text of its errors for a claim, by `namespace/name`: `class c: selector #0`."""
        return _source(self.class_name, claim, self.number)


def _source(class_name: str, claim: str, number: int) -> str:
    return f"{f'class {class_name}' if class_name else f'claim {claim}'}: selector #{number}"


class RequestPlan(NamedTuple):
    """A request without alternatives, or one of its alternatives."""

    #: `request`, or `request/alternative`.
    name: str
    #: Name of the request.
    parent: str
    class_name: str
    selectors: tuple[Selector, ...]
    #: All matching devices.
    all_devices: bool
    devices: int
    admin_access: bool
    tolerations: tuple[Toleration, ...]
    #: Requested shares of capacities.
    capacity: Mapping[str, Fraction]
    #: Position among the plans of its claim.
    number: int


class ClaimPlan(NamedTuple):
    """The alternatives of each request of a claim, and its constraints."""

    key: str
    uid: str
    requests: tuple[tuple[RequestPlan, ...], ...]
    constraints: tuple[DeviceConstraint, ...]
    spec: DeviceClaim


class ClaimPlans:
    """The plans of claims by their content, for one state of the classes."""

    def __init__(self, classes: Mapping[str, DeviceClassObject]) -> None:
        self._classes = classes
        self._plans: dict[bytes, ClaimPlan] = {}
        #: Of the contents.
        self._bytes = 0
        #: The attributes, without their domains, that selectors and constraints of plans may read since the classes
        #: changed; None for all.
        self.reads: set[str] | None = set()

    def forget(self) -> None:
        """Drops the plans: a class changed."""
        self._drop()
        self.reads = set()

    def _drop(self) -> None:
        self._plans.clear()
        self._bytes = 0

    def known(self, content: bytes) -> ClaimPlan | None:
        """The plan of a claim with this content, without its names, if it is kept."""
        return self._plans.get(content)

    def of(self, claim: Claim, compiles: Callable[[int], None] = lambda _: None) -> ClaimPlan:
        """The plan of a claim, as `plan_claim`. Those that fail are not kept.

        `compiles` is called with the number of characters before they are compiled. Raises what it raises.
        """
        content = claim.content or content_of(claim.spec)
        found = self._plans.get(content)
        if found is None:
            compiles(sum(_expression_lengths(claim)))
            if len(self._plans) >= _MOST_PLANS or self._bytes > _MOST_PLAN_BYTES:
                self._drop()
            found = self._plans[content] = plan_claim(claim, self._classes)
            self._bytes += _size_of(content)
            self._note_reads(found)
        return ClaimPlan(claim.key, claim.uid, found.requests, found.constraints, found.spec)

    def _note_reads(self, plan: ClaimPlan) -> None:
        selectors = [each for alternatives in plan.requests for one in alternatives for each in one.selectors]
        for each in selectors:
            if self.reads is None or each.reads is None or len(self.reads) > _MOST_READ:
                self.reads = None
                return
            self.reads |= each.reads
        if self.reads is not None:
            names = [each.match_attribute or each.distinct_attribute or "" for each in plan.constraints]
            self.reads |= {qualified(name, "")[1] for name in names}


#: Plans that are kept, and bytes of their contents.
_MOST_PLANS: Final = 4096
_MOST_PLAN_BYTES: Final = 16 << 20
#: Attributes by which nodes differ: tenants write their names.
_MOST_READ: Final = 4096
#: Specs of claims that are gone, beyond twice the number of claims, and their bytes, beyond twice those in use.
_SPARE: Final = 1024
_SPARE_BYTES: Final = 8 << 20
#: Characters of all CEL expressions of a claim: they are compiled within a session, at 1.3 us per character.
_MOST_CHARACTERS: Final = 65_536
#: A feature that is not supported, as part of a sentence.
_UNSUPPORTED: Final = "{where} uses {field}, which is not supported"


def plan_claim(claim: Claim, classes: Mapping[str, DeviceClassObject]) -> ClaimPlan:
    """The plan of a claim. Raises AllocationError for requests that no node can fulfil."""
    requests: list[tuple[RequestPlan, ...]] = []
    number = 0
    lengths = [*_expression_lengths(claim)]
    characters = sum(lengths)
    if characters > _MOST_CHARACTERS:
        text = f"its selectors have {characters} characters, at most {_MOST_CHARACTERS} are supported"
        raise AllocationError(f"claim {claim.key}: {text}", "unsupported")
    for request in claim.spec.requests or ():
        found: list[RequestPlan] = []
        for each, name in _alternatives(claim, request):
            found.append(_plan_request(claim, request, each, name, number, classes, len(lengths)))
            number += 1
        requests.append(tuple(found))
    for index, constraint in enumerate(claim.spec.constraints or ()):
        if not constraint.match_attribute and not constraint.distinct_attribute:
            raise AllocationError(f"claim {claim.key}, constraint #{index}: empty constraint")
    return ClaimPlan(claim.key, claim.uid, tuple(requests), claim.spec.constraints or (), claim.spec)


def _expression_lengths(claim: Claim) -> Iterator[int]:
    for request in claim.spec.requests or ():
        for each in (request.exactly, *(request.first_available or ())):
            for selector in (each.selectors or ()) if each is not None else ():
                yield len(selector.cel.expression) if selector.cel is not None else 0


def _alternatives(claim: Claim, request: DeviceRequest) -> list[tuple[ExactRequest, str]]:
    if request.exactly is not None:
        return [(request.exactly, request.name)]
    if request.first_available:
        return [(each, f"{request.name}/{each.name}") for each in request.first_available]
    raise AllocationError(f"claim {claim.key}, request {request.name}: unknown request type")


def _plan_request(
    claim: Claim,
    request: DeviceRequest,
    each: ExactRequest,
    name: str,
    number: int,
    classes: Mapping[str, DeviceClassObject],
    selectors_of_claim: int,
) -> RequestPlan:
    where = f"claim {claim.key}, request {name}"
    if each.derived_attributes:
        raise AllocationError(_UNSUPPORTED.format(where=where, field="derivedAttributes"), "unsupported")
    if not each.device_class_name:
        raise AllocationError(f"{where}: missing device class name")
    of_class = classes.get(each.device_class_name)
    if of_class is None:
        raise AllocationError(f"request {name}: device class {each.device_class_name} does not exist")
    if each.allocation_mode not in ("", EXACT_COUNT, ALL):
        raise AllocationError(f"{where}: unsupported count mode {each.allocation_mode}")
    if each.allocation_mode != ALL and each.count < 1:
        raise AllocationError(f"{where}: count {each.count} is not above 0")
    selectors = [
        *_selectors(of_class.spec.selectors, claim.key, each.device_class_name),
        *_selectors(each.selectors, claim.key, among=selectors_of_claim),
    ]
    try:
        requested = each.capacity.requests if each.capacity is not None else None
        capacity = {key: parse_quantity(amount) for key, amount in (requested or {}).items()}
    except QuantityError as error:
        raise AllocationError(f"{where}: {error}") from None
    return RequestPlan(
        name,
        request.name,
        each.device_class_name,
        tuple(selectors),
        each.allocation_mode == ALL,
        each.count,
        bool(each.admin_access),
        each.tolerations or (),
        capacity,
        number,
    )


def _selectors(
    found: tuple[DeviceSelector, ...] | None, claim: str, class_name: str = "", among: int = 0
) -> list[Selector]:
    made: list[Selector] = []
    for index, selector in enumerate(found or ()):
        expression = selector.cel.expression if selector.cel is not None else ""
        program = compile_selector(expression) if selector.cel is not None else None
        if not isinstance(program, Program):
            problem = "expression empty" if program is None else f"compile error: {program}"
            raise AllocationError(f"{_source(class_name, claim, index)}: CEL {problem}", "selector_error")
        made.append(Selector(program, read_attributes(expression), index, class_name, among))
    return made


def alternative_score(spec: DeviceClaim, allocation: Allocation) -> int:
    """The sum over the requests with alternatives of 8, the most of them, less the index of the chosen one."""
    chosen = {result.request for result in allocation.devices.results or ()}
    return sum(
        MAX_ALTERNATIVES - index
        for request in spec.requests or ()
        for index, each in enumerate(request.first_available or ())
        if f"{request.name}/{each.name}" in chosen
    )


def allocation_config(
    plan: ClaimPlan, chosen: tuple[RequestPlan, ...], classes: Mapping[str, DeviceClassObject]
) -> tuple[dict[str, Any], ...]:
    """`devices.config` of an allocation: the configurations of the classes, then those of the claim.

    `chosen`: the alternative of each request. Without `requests` where all are covered.
    """
    found: list[dict[str, Any]] = []
    by_class: dict[str, list[str]] = {}
    for each in chosen:
        by_class.setdefault(each.class_name, []).append(each.name)
    for class_name, names in by_class.items():
        configs = classes[class_name].spec.config or ()
        found += [{"source": "FromClass", "requests": list(names), **_opaque(config)} for config in configs]
    for config in plan.spec.config or ():
        wanted = config.get("requests") or []
        if not wanted or any(each.name in wanted or each.parent in wanted for each in chosen):
            found.append({"source": "FromClaim", "requests": list(wanted), **_opaque(config)})
    for entry in found:
        if all(each.name in entry["requests"] or each.parent in entry["requests"] for each in chosen):
            entry["requests"] = []
        if not entry["requests"]:
            del entry["requests"]
    return tuple(found)


def _opaque(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in ("requests", "source")}
