"""Admission of Queues: defaults, amounts that contradict each other, the tree of queues, and deletions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.admission.namespace_queues import check_allowed
from capcard_sched.admission.review import DEFAULT_QUEUE, ROOT_QUEUE, AdmissionResult, JsonPatch, verdict
from capcard_sched.model import annotations as keys
from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS
from capcard_sched.model.cards import CARD, CardSyntaxError, is_card_quota, no_card_quota, parse_card_quota
from capcard_sched.model.device_quota import DEVICE_QUOTA_FORM, counts_devices, device_quota_problem
from capcard_sched.model.namespace_queues import circle
from capcard_sched.model.quantity import QuantityError, base_amount
from capcard_sched.model.quoting import escaped, plural
from capcard_sched.model.resources import CPU
from capcard_sched.validation.checks import (
    Finding,
    annotation_field,
    card_resource,
    check_card_quota,
    check_spelling,
    is_slice,
)
from capcard_sched.validation.inventory import as_map, base_amount_of, object_name, texts, value_at
from capcard_sched.validation.meaning import canonical
from capcard_sched.validation.names import SUBDOMAIN_FORM, is_subdomain, shown
from capcard_sched.validation.overcommit import check_overcommit
from capcard_sched.validation.queue_tree import amounts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from capcard_sched.admission.review import ClusterView
    from capcard_sched.validation.inventory import Json


class QueueRules(NamedTuple):
    """Settings of the checks of Queues; the defaults are Volcano's."""

    #: Levels of queues below root.
    max_depth: int = 5
    #: The amounts of root may not change.
    protects_root: bool = True
    #: A queue with allocated pods is not deleted.
    keeps_used_queues: bool = False


DEFAULT_RULES: Final = QueueRules()
_STATES: Final = ("", "Open", "Closed")
_ROOT_PROTECTED: Final = "root queue's resource attributes (capability, deserved, guarantee) cannot be modified"
#: Fields of amounts to their paths in the spec.
_AMOUNTS: Final = {"capability": "capability", "deserved": "deserved", "guarantee": "guarantee.resource"}
_STRATEGIES: Final = ("", "fifo", "traverse")
_MAX_WEIGHT: Final = 65535


def default_queue(obj: Json) -> AdmissionResult:
    """The defaults of a new queue as a patch."""
    patch = JsonPatch(obj)
    spec = obj.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    if spec.get("reclaimable") is None and object_name(obj) != ROOT_QUEUE:
        patch.set(True, "spec", "reclaimable")
    if not spec.get("weight"):
        patch.set(1, "spec", "weight")
    annotations = texts(obj, "metadata", "annotations")
    path, weights = annotations.get(keys.HIERARCHY, ""), annotations.get(keys.HIERARCHY_WEIGHTS, "")
    if path and weights and path != "root" and not path.startswith("root/"):
        patch.set(f"root/{path}", "metadata", "annotations", keys.HIERARCHY)
        patch.set(f"1/{weights}", "metadata", "annotations", keys.HIERARCHY_WEIGHTS)
    return AdmissionResult(patch=tuple(patch.operations))


def check_queue_object(
    obj: Json, old: Json | None, view: ClusterView, rules: QueueRules = DEFAULT_RULES
) -> AdmissionResult:
    """What is wrong with a new queue, or with one that changes (`old`).

    The state is checked at creation only: the status of a stored queue is the queue controller's.
    """
    return verdict(queue_findings(obj, old, view, rules))


def queue_findings(
    obj: Json, old: Json | None, view: ClusterView, rules: QueueRules = DEFAULT_RULES
) -> Iterator[Finding]:
    """Everything that is wrong with a queue; arguments as of `check_queue_object`."""
    spec = obj.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    state = (obj.get("status") or {}).get("state") if isinstance(obj.get("status"), dict) else None
    if old is None and (state or "") not in _STATES:
        yield Finding("error", "status.state", f"queue state {shown(state)} is not accepted", "Open or Closed")
    yield from _check_numbers(spec)
    yield from _check_amounts(spec)
    yield from _check_hierarchy(obj, view)
    yield from _check_parent(obj, old, spec, view, rules.max_depth)
    if old is not None and rules.protects_root and object_name(obj) == ROOT_QUEUE:
        yield from _check_root(spec, as_map(old.get("spec")))
    yield from _check_tree(obj, old, spec, view)
    annotations = texts(obj, "metadata", "annotations")
    quota = annotations.get(keys.CARD_QUOTA)
    if quota is not None:
        yield from check_card_quota(quota, "the queue is rejected" if old is None else "the change is rejected")
    yield from _check_overcommit(spec, old, annotations)
    if old is None or as_map(old.get("spec")).get("allowedNamespaces") != spec.get("allowedNamespaces"):
        yield from check_allowed(object_name(obj), spec, view)
    yield from _check_lowered(obj, old)
    yield from check_spelling(annotations)


def _check_overcommit(spec: Json, old: Json | None, annotations: Mapping[str, str]) -> Iterator[Finding]:
    """The overcommit factor; a change of other fields is not held up by it."""
    known, before = texts(old or {}, "metadata", "annotations"), as_map((old or {}).get("spec"))
    same = annotations.get(keys.OVERCOMMIT_FACTOR) == known.get(keys.OVERCOMMIT_FACTOR)
    if old is None or not same or spec.get("deserved") != before.get("deserved"):
        deserved = {name: base_amount_of(name, raw) for name, raw in as_map(spec.get("deserved")).items()}
        yield from check_overcommit(annotations, deserved)


def check_queue_deletion(name: str, view: ClusterView, rules: QueueRules = DEFAULT_RULES) -> AdmissionResult:
    """Whether a queue may be deleted."""
    if name in {DEFAULT_QUEUE, ROOT_QUEUE}:
        return AdmissionResult((Finding("error", "", f"`{name}` queue can not be deleted"),))
    queue = view.queue(name) if rules.keeps_used_queues else None
    pods = _pods(queue.allocated) if queue is not None else 0
    if pods:
        message = f"queue {name} cannot be deleted because it has allocated Pods: {pods}"
        return AdmissionResult((Finding("error", "", message, "a queue without allocated pods"),))
    children = [*view.children(name), *view.namespace_queues_below(name)]
    if not children:
        return AdmissionResult()
    message = f"queue {name} can not be deleted because it has {len(children)} child queues: {', '.join(children)}"
    return AdmissionResult((Finding("error", "", message, "deleting the child queues first"),))


def _check_numbers(spec: Json) -> Iterator[Finding]:
    weight = spec.get("weight")
    if weight is not None and (
        isinstance(weight, bool) or not isinstance(weight, int) or not 0 < weight <= _MAX_WEIGHT
    ):
        message = "queue weight must be a positive integer"
        yield Finding("error", "spec.weight", f"{message}, got {shown(weight)}", f"1 to {_MAX_WEIGHT}")
    strategy = spec.get("dequeueStrategy")
    if strategy is not None and strategy not in _STRATEGIES:
        yield Finding("error", "spec.dequeueStrategy", f"{shown(strategy)} is not accepted", "fifo or traverse")


def _check_amounts(spec: Json) -> Iterator[Finding]:
    """Guarantee <= deserved <= capability, resource by resource, where both are given."""
    guarantee = spec.get("guarantee")
    sides: dict[str, tuple[str, Mapping[str, int]]] = {}
    for name, field, raw in (
        ("capability", "spec.capability", spec.get("capability")),
        ("deserved", "spec.deserved", spec.get("deserved")),
        ("guarantee", "spec.guarantee.resource", guarantee.get("resource") if isinstance(guarantee, dict) else None),
    ):
        amounts: dict[str, int] = {}
        for resource, quantity in raw.items() if isinstance(raw, dict) else ():
            place = f'{field}["{resource}"]'
            try:
                amount = base_amount(resource, quantity)
            except (QuantityError, TypeError, AttributeError):
                amount = None
            if amount is None:
                yield Finding("error", place, *_no_amount(resource, quantity))
            elif amount < 0:
                yield Finding("error", place, f"{shown(quantity)} is negative", "a quantity of at least 0")
            elif problem := device_quota_problem(resource):
                yield Finding("error", place, f"the key {problem}", DEVICE_QUOTA_FORM)
            elif counts_devices(resource) and amount % CARD:
                yield Finding("error", place, f"{shown(quantity)} is no number of devices", "a whole number")
            else:
                amounts[resource] = amount
        sides[name] = field, amounts
    for less, more in (("deserved", "capability"), ("guarantee", "capability"), ("guarantee", "deserved")):
        field, lower = sides[less]
        _, upper = sides[more]
        for resource in sorted(lower.keys() & upper.keys()):
            if lower[resource] > upper[resource]:
                wanted = spec["capability" if more == "capability" else "deserved"][resource]
                message = f"{less} should less equal than {more}"
                yield Finding("error", f'{field}["{resource}"]', message, f"at most {wanted}")


def _no_amount(resource: str, quantity: object) -> tuple[str, str]:
    """The problem of an entry without an amount, and the accepted form: the name, or else the quantity."""
    try:
        is_quantity = base_amount(CPU, quantity) is not None  # type: ignore[arg-type]
    except (QuantityError, TypeError, AttributeError):
        is_quantity = False
    if is_quantity:
        return (
            f"the key {escaped(resource)} is no resource",
            "cpu, memory, or a resource with its domain, such as nvidia.com/gpu",
        )
    return f"{shown(quantity)} is not a quantity", "a quantity such as 500m or 16Gi"


def _check_hierarchy(obj: Json, view: ClusterView) -> Iterator[Finding]:
    """`volcano.sh/hierarchy` and its weights: paths of one length, no path through a queue's own leaf."""
    annotations = texts(obj, "metadata", "annotations")
    path, weights = annotations.get(keys.HIERARCHY, ""), annotations.get(keys.HIERARCHY_WEIGHTS, "")
    if not path and not weights:
        return
    steps, numbers = path.split("/"), weights.split("/")
    if len(steps) != len(numbers):
        message = f"hierarchy {shown(path)} has {len(steps)} parts, its weights {shown(weights)} have {len(numbers)}"
        yield Finding("error", annotation_field(keys.HIERARCHY_WEIGHTS), message, "a weight for each part, such as 1/2")
    if any(not step for step in steps):
        message = f"hierarchy {shown(path)} has an empty part"
        yield Finding("error", annotation_field(keys.HIERARCHY), message, "names joined by /, such as root/team")
    for number in numbers:
        try:
            positive = 0 < float(number) < float("inf")
        except ValueError:
            positive = False
        if not positive:
            message = f"{shown(number)} is not a weight"
            yield Finding("error", annotation_field(keys.HIERARCHY_WEIGHTS), message, "positive numbers joined by /")
    for other in view.queues():
        if other.hierarchy and other.name != object_name(obj) and other.hierarchy.startswith(f"{path}/"):
            message = f"{shown(path)} is not allowed: it is part of the path {shown(other.hierarchy)} of {other.name}"
            yield Finding("error", annotation_field(keys.HIERARCHY), message, "a path that ends in a leaf")


def _check_root(spec: Json, old: Json) -> Iterator[Finding]:
    """Errors for changes of the amounts of root, compared by value."""
    for field, path in _AMOUNTS.items():
        sides = [canonical(as_map(value_at(side, *path.split("."))), path.rpartition(".")[2]) for side in (spec, old)]
        if sides[0] != sides[1]:
            message = f"{_ROOT_PROTECTED}: {field} differs (--enable-root-queue-protection)"
            yield Finding(
                "error", f"spec.{path}", message, "the stored amounts, or --enable-root-queue-protection=false"
            )


def _check_parent(obj: Json, old: Json | None, spec: Json, view: ClusterView, max_depth: int) -> Iterator[Finding]:
    name, parent = object_name(obj), spec.get("parent")
    if name == ROOT_QUEUE:
        if parent:
            yield Finding("error", "spec.parent", "the root queue has no parent", "no value")
        return
    if not parent or parent == ROOT_QUEUE:
        return
    if not isinstance(parent, str) or not is_subdomain(parent):
        yield Finding("error", "spec.parent", f"{shown(parent)} is not the name of a queue", SUBDOMAIN_FORM)
        return
    if parent == name:
        yield Finding("error", "spec.parent", f"queue {name} cannot use itself as parent", "another queue")
        return
    entry = view.queue(parent)
    if entry is None:
        known = ", ".join(sorted(queue.name for queue in view.queues())[:10])
        yield Finding("error", "spec.parent", f"failed to get parent queue of queue {name}: {parent} not found", known)
        return
    ancestors = [parent]
    while entry is not None and entry.parent and entry.parent not in ancestors:
        ancestors.append(entry.parent)
        entry = view.queue(entry.parent)
    if name in ancestors:
        message = f"queue {name} would be below itself: {circle([name, *ancestors[: ancestors.index(name) + 1]])}"
        yield Finding("error", "spec.parent", message, "a queue that is not below this one")
        return
    unchanged = old is not None and ((old.get("spec") or {}).get("parent") or ROOT_QUEUE) == parent
    depth = 1 + sum(ancestor != ROOT_QUEUE for ancestor in ancestors)
    if not unchanged and depth > max_depth:
        message = f"queue {name} exceeds the maximum allowed depth of {max_depth}"
        yield Finding(
            "error",
            "spec.parent",
            message,
            f"a queue with at most {plural(max_depth - 2, 'queue')} above it below root",
        )
        return
    if not unchanged and not view.children(parent):
        queue = view.queue(parent)
        pods = _pods(queue.allocated if queue is not None else {})
        if pods:
            message = f"queue {parent} cannot be the parent queue of queue {name} because it has allocated Pods: {pods}"
            yield Finding("error", "spec.parent", message, "a queue without pods")


def _check_tree(obj: Json, old: Json | None, spec: Json, view: ClusterView) -> Iterator[Finding]:
    """Amounts against those of the queues above and below; a change of other fields is not held up by them."""
    old_spec = (old.get("spec") or {}) if old is not None else None
    fields = ("capability", "deserved", "guarantee", "parent")
    if old_spec is not None and all(spec.get(field) == old_spec.get(field) for field in fields):
        return
    name = object_name(obj)
    tree = view.inventory.tree.instead(name, str(spec.get("parent") or ROOT_QUEUE), amounts_of(spec))
    yield from tree.below_ancestors(name)
    yield from tree.above_descendants(name)
    yield from tree.sums_below(name)
    yield from tree.sums_beside(name)


def _check_lowered(obj: Json, old: Json | None) -> Iterator[Finding]:
    """Warnings about a card quota that an update sets below what is allocated: no further pod of the card starts.

    `volcano.sh/card.allocated` (publishCardUsage) has the usage per card; without it `status.allocated` has it per
    resource, and the sum of the quotas that one resource counts is compared.
    """
    field = annotation_field(keys.CARD_QUOTA)
    before, after = _quota_text(old), _quota_text(obj)
    if old is None or before == after:
        return
    try:
        quota = parse_card_quota(after)
    except CardSyntaxError:
        return
    published = texts(obj, "metadata", "annotations").get(keys.CARD_ALLOCATED, "")
    if not is_card_quota(after):
        used = [f"{amount} x {name}" for name, amount in _used_resources(obj, old).items()]
        if used:
            yield Finding("warning", field, f"{no_card_quota(object_name(obj))}, {', '.join(used)} are allocated")
        return
    try:
        cards = {card: amount // CARD for card, amount in parse_card_quota(published).items()}
    except CardSyntaxError:
        cards = {}
    for card, used_cards in sorted(cards.items()):
        limit = quota.get(card, 0) // CARD
        if used_cards > limit:
            yield Finding("warning", field, f"quota of {card} is {limit}, {used_cards} are allocated")
    if not cards:
        yield from _check_sums(quota, _used_resources(obj, old), field)


def _check_sums(quota: Mapping[str, int], used: Mapping[str, int], field: str) -> Iterator[Finding]:
    """Warnings about resources of which more is allocated than the quotas of their cards add up to.

    The name of a whole card does not contain its resource: whole cards of all vendors add up.
    """
    whole = [name for name in used if not is_slice(name)]
    groups = [*([name] for name in used if name not in whole), *([whole] if whole else [])]
    for names in groups:
        own = [card for card in quota if (card_resource(card) in names) or (names is whole and not card_resource(card))]
        limit, allocated = sum(quota[card] for card in own) // CARD, sum(used[name] for name in names)
        if allocated > limit:
            cards = f"quotas of {', '.join(sorted(own))} add up to {limit}" if own else "no card has a quota"
            yield Finding("warning", field, f"{cards}, {allocated} x {', '.join(sorted(names))} are allocated")


def _used_resources(obj: Json, old: Json) -> dict[str, int]:
    """`status.allocated` of devices, in whole units > 0."""
    found: dict[str, int] = {}
    for name, raw in sorted(
        as_map(value_at(obj, "status", "allocated") or value_at(old, "status", "allocated")).items()
    ):
        amount = -(-base_amount_of(name, raw) // CARD)
        if DEFAULT_CARD_LABELS.is_device(name) and amount > 0:
            found[name] = amount
    return found


def _quota_text(obj: Json | None) -> str:
    return texts(obj or {}, "metadata", "annotations").get(keys.CARD_QUOTA, "")


def _pods(allocated: Mapping[str, object]) -> int:
    try:
        return int(str(allocated.get("pods", 0)))
    except ValueError:
        return 0
