"""`checks` over whole API objects, and checks across several objects.

Objects are plain JSON values and may be malformed: schema validation reports that elsewhere, and nothing here raises.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from capcard_sched.model import annotations as keys
from capcard_sched.model.card_budgets import CARD_BUDGET
from capcard_sched.model.card_registration import CARD_FORM, Registration, decode_registration
from capcard_sched.model.cards import (
    CARD,
    CardSyntaxError,
    no_card_quota,
    parse_card_name,
    parse_card_request,
)
from capcard_sched.model.device_quota import device_quota_key
from capcard_sched.model.kinds import is_native, kind_of
from capcard_sched.model.kube_groups import KUBE_GROUP
from capcard_sched.model.namespace_queues import NAMESPACE_QUEUE, PARENT_FORM, queue_id
from capcard_sched.model.node_labels import absent_of, pairs_text, selector_text
from capcard_sched.model.numbers import whole_number
from capcard_sched.model.objects import NodeSelector
from capcard_sched.model.queue import ACCEPTED as NAMESPACES_FORM
from capcard_sched.model.queue import namespace_rule
from capcard_sched.model.quoting import escaped, quoted
from capcard_sched.model.resources import VGPU_RESOURCES
from capcard_sched.model.selectors import matches_node_selector, node_selector_problem
from capcard_sched.validation.card_budgets import check_card_budget
from capcard_sched.validation.checks import (
    MOST_RESOURCES,
    QUOTA_FORM,
    SLICE_FORM,
    Finding,
    Severity,
    Spelling,
    annotation_field,
    card_resource,
    check_card_name,
    check_card_quota,
    check_card_request,
    check_choice,
    check_node,
    is_card_resource,
    listed,
)
from capcard_sched.validation.features import check_features
from capcard_sched.validation.hint_checks import (
    QuotaPlugins,
    check_cooldown,
    check_running_estimate,
    check_scoring,
    check_task_topology,
    unenforced_limits,
)
from capcard_sched.validation.inventory import (
    Inventory,
    Json,
    allocatable,
    as_map,
    as_maps,
    base_amount_of,
    check_queue,
    meant,
    namespace_of,
    object_name,
    texts,
    value_at,
)
from capcard_sched.validation.job_plugins import check_job_plugins
from capcard_sched.validation.job_stages import check_stages
from capcard_sched.validation.late_members import check_first_pods
from capcard_sched.validation.misplaced import check_annotation_places
from capcard_sched.validation.priority_classes import check_defaults, check_priority_classes
from capcard_sched.validation.templates import JOB_TEMPLATE, NATIVE_SCHEDULERS, Template, job_of_cron, templates_of
from capcard_sched.validation.unsupported_fields import (
    check_affinity,
    check_kube_group,
    fields_without_plugin,
    hard_without_tier,
    unsupported_fields,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_NODE_LABELS: Final = "labels of a node"
#: The beginnings of the messages about a node selector, and about a required node affinity, that no node satisfies.
NO_NODE_MATCHES: Final = ("no node in the input has the labels", "no node in the input matches the node affinity")

SERVICE_TYPES: Final = ("inference", "training")
BOOLEANS: Final = ("true", "false")
#: Quota plugins of the built-in scheduler-conf.
BUILT_IN_PLUGINS: Final = QuotaPlugins(frozenset({"capacity-card"}), unnamed_cards="infer")
OUR_SCHEDULERS: Final = frozenset({"capcard-sched", "volcano"})
_CARD_NAMES: Final = frozenset({keys.CARD_NAME, keys.CARD_NAME_ALIAS})
_GROUP_NAMES: Final = (keys.GROUP_NAME, keys.GROUP_NAME_ALIAS)
_GROUP_FIELD: Final = ".schedulingGroup.podGroupName"


def check_objects(
    objects: Sequence[Json],
    plugins: QuotaPlugins = BUILT_IN_PLUGINS,
    shares: Collection[str] = VGPU_RESOURCES,
    device_cards: Mapping[str, int] | None = None,
    *,
    is_conf_known: bool = True,
) -> list[tuple[int, Finding]]:
    """All findings in order, each with the index of its object; -1 for findings across objects.

    `plugins`: those of the scheduler-conf, of the built-in one by default. `shares`: resources of shared devices.
    `device_cards`: thousandths of cards that ResourceSlices offer. `is_conf_known`: whether that of the input is valid.
    """
    inventory = Inventory(objects, plugins)
    for card, amount in (device_cards or {}).items():
        inventory.cards[card] = inventory.cards.get(card, 0) + amount
    inventory.priority_classes = {object_name(obj) for obj in objects if obj.get("kind") == "PriorityClass"}
    found = [
        (index, finding)
        for index, obj in enumerate(objects)
        for finding in (
            *check_object(obj, inventory, plugins, shares, unsupported="error"),
            *(fields_without_plugin(obj, plugins.names) if is_conf_known else ()),
        )
    ]
    found += check_defaults(objects)
    return found + [(-1, finding) for finding in inventory.overview()]


def check_object(
    obj: Json,
    inventory: Inventory,
    plugins: QuotaPlugins = BUILT_IN_PLUGINS,
    shares: Collection[str] = VGPU_RESOURCES,
    *,
    unsupported: Severity = "warning",
) -> Iterator[Finding]:
    """Findings of one object, given the inventory of all. `unsupported`: the severity of unsupported features."""
    kind = kind_of(obj)
    if kind == KUBE_GROUP:
        yield from check_kube_group(obj)
        return
    if not is_native(obj):
        return
    job = job_of_cron(obj)
    if job is not None:
        for one in check_object(job, inventory, plugins, shares):
            yield msgspec.structs.replace(one, field=f"{JOB_TEMPLATE}.{one.field}")
        return
    # First the causes of what the other checks find.
    spelling, templates = Spelling(), list(templates_of(obj))
    yield from check_annotation_places(obj, templates, spelling)
    yield from unsupported_fields(obj, plugins.names)
    yield from hard_without_tier(obj)
    yield from check_affinity(obj) if kind == "PodGroup" else ()
    if kind == "Queue":
        problem = inventory.parent_problem(object_name(obj))
        yield from _queue_limits(obj, object_name(obj), inventory, plugins, shares)
        yield from [problem] if problem is not None else []
    elif kind == NAMESPACE_QUEUE:
        yield from _namespace_queue(obj, inventory, plugins, shares)
    elif kind == CARD_BUDGET:
        yield from check_card_budget(obj, inventory, plugins)
    elif kind == "Node":
        yield from check_node(texts(obj, "metadata", "labels"), allocatable(obj), plugins.card_labels)
        yield from _registration(texts(obj, "metadata", "annotations").get(keys.NODE_VGPU_REGISTER))
    else:
        yield from _of_pods(obj, templates, inventory, spelling, unsupported)


def _namespace_queue(obj: Json, inventory: Inventory, plugins: QuotaPlugins, shares: Collection[str]) -> list[Finding]:
    name = f"{namespace_of(obj)}/{object_name(obj)}"
    ready = inventory.readiness(name)
    findings = _queue_limits(obj, name, inventory, plugins, shares)
    if not ready.is_ready:
        message = f"{ready.reason}: {ready.message.removeprefix('spec.parent: ')}: pods of the queue do not start"
        findings.append(Finding("warning", "spec.parent", message, PARENT_FORM))
    elif ready.message:
        findings.append(Finding("warning", "spec", ready.message, "amounts of resources that the queues above have"))
    return findings


def _of_pods(
    obj: Json, templates: Sequence[Template], inventory: Inventory, spelling: Spelling, unsupported: Severity
) -> Iterator[Finding]:
    """Findings of a pod, a PodGroup, or an object with pod templates."""
    kind = kind_of(obj)
    charged = [_cards(template, obj, inventory, spelling) for template in templates]
    yield from _workload(obj, templates, charged, inventory)
    if kind == "PodGroup":
        key = str(value_at(obj, "metadata", "namespace") or "default"), object_name(obj)
        yield from check_first_pods(obj, inventory.first_pods.get(key))
    if kind == "Job":
        yield from check_job_plugins(as_map(obj.get("spec")))
        yield from check_stages(as_map(obj.get("spec")))
    if inventory.priority_classes is not None:
        ours = [(one.path, one.body) for one in templates if one.scheduler in OUR_SCHEDULERS]
        yield from check_priority_classes(obj, ours, inventory.priority_classes)
    for template, cards in zip(templates, charged, strict=True):
        yield from _group_of(template, obj, inventory)
        yield from _template(template, cards, obj, inventory)
        if template.scheduler in OUR_SCHEDULERS:
            yield from check_features(template.body, template.path, cards.requests, inventory, unsupported)


def _registration(text: str | None) -> list[Finding]:
    """The cards that a device plugin registered, as far as the scheduler cannot use them."""
    found = Registration(()) if text is None else decode_registration(text)
    severity: Severity = "warning" if found.cards else "error"
    field = annotation_field(keys.NODE_VGPU_REGISTER)
    return [Finding(severity, field, problem, CARD_FORM) for problem in found.problems]


# --- workloads ------------------------------------------------------------------------------------------------------


class _TemplateCards(NamedTuple):
    """The card of one pod of a template, as its annotations and requests express it."""

    #: Alternatives; None: malformed or hidden.
    cards: tuple[str, ...] | None
    #: Cards of one pod, in thousandths.
    amount: int
    #: A card name has no effect on the template: its annotation is misspelt, or on the workload.
    hidden: bool
    #: Requests of one pod in base units.
    requests: Mapping[str, int]
    #: Names of all resources; with more than MOST_RESOURCES, which are an error, the template has no requests.
    names: Collection[str]


def _workload(
    obj: Json, templates: Sequence[Template], charged: Sequence[_TemplateCards], inventory: Inventory
) -> Iterator[Finding]:
    ours = kind_of(obj) in ("Job", "PodGroup")
    severity: Severity = "error" if ours else "warning"
    annotations = texts(obj, "metadata", "annotations")
    if keys.SERVICE_TYPE in annotations:
        yield from check_choice(keys.SERVICE_TYPE, annotations[keys.SERVICE_TYPE], SERVICE_TYPES, severity=severity)
    if keys.PREEMPTABLE in annotations:
        yield from check_choice(keys.PREEMPTABLE, annotations[keys.PREEMPTABLE], BOOLEANS)
    if keys.RUNNING_ESTIMATE in annotations:
        yield from check_running_estimate(annotations[keys.RUNNING_ESTIMATE], annotation_field(keys.RUNNING_ESTIMATE))
    if ours and as_map(obj.get("spec")).get("runningEstimate") is not None:
        yield from check_running_estimate(value_at(obj, "spec", "runningEstimate"), "spec.runningEstimate")
    yield from check_task_topology(annotations, _task_names(obj), severity=severity)
    reference, queue_field = _queue(obj, templates)
    queue = queue_id(reference, namespace_of(obj))
    yield from check_queue(queue, queue_field, inventory)
    if _is_pending(obj) if ours else _waits_in(templates):
        yield from _accepted_namespace(obj, reference, queue_field, inventory)
    yield from _group_minimum(annotations)
    if keys.CARD_REQUEST in annotations:
        yield from check_card_request(annotations[keys.CARD_REQUEST], severity=severity)
        yield from _request_against(annotations[keys.CARD_REQUEST], templates, charged, queue, inventory)


def _is_pending(obj: Json) -> bool:
    """Whether a Job or PodGroup is not admitted yet."""
    phase = value_at(obj, "status", "phase") or value_at(obj, "status", "state", "phase")
    return phase in (None, "", "Pending")


def _waits_in(templates: Sequence[Template]) -> bool:
    """Whether pods of this scheduler that name a queue wait for it, or will."""
    return any(
        one.scheduler in OUR_SCHEDULERS
        and keys.POD_QUEUE_NAME in one.annotations
        and not value_at(one.body, "spec", "nodeName")
        for one in templates
    )


def _accepted_namespace(obj: Json, reference: str, field: str, inventory: Inventory) -> Iterator[Finding]:
    """A warning about a queue that, or an ancestor of which, does not accept the jobs of a namespace."""
    namespace = namespace_of(obj)
    if reference == "default":  # counts as none: the API server fills it in
        reference = inventory.namespace_queues.get(namespace) or reference
    queue = queue_id(reference, namespace)
    for name in (queue, *inventory.ancestors(queue)):
        rule = inventory.namespace_rules.get(name)
        labels = inventory.namespaces.get(namespace)
        if rule is None or rule.problem or (rule.reads_labels and labels is None):
            continue
        if not rule.accepts(namespace, labels):
            accepting = f"annotation {keys.QUEUE_NAMESPACES} of Queue {name}"
            message = f"queue {name} does not accept jobs of namespace {namespace} ({accepting})"
            yield Finding("warning", field, f"{message}: its pending pods do not start", "a queue that accepts them")
            return


def _group_minimum(annotations: Mapping[str, str]) -> Iterator[Finding]:
    text = annotations.get(keys.GROUP_MIN_MEMBER)
    if text is not None and whole_number(text) is None:
        message = f"{quoted(text)} is no number of pods: it is ignored"
        yield Finding("warning", annotation_field(keys.GROUP_MIN_MEMBER), message, "a whole number, such as 4")


def _queue_limits(
    obj: Json, name: str, inventory: Inventory, plugins: QuotaPlugins, shares: Collection[str]
) -> list[Finding]:
    """Findings about the limits and annotations of a Queue or NamespaceQueue with this id."""
    annotations = texts(obj, "metadata", "annotations")
    quota = annotations.get(keys.CARD_QUOTA)
    # A card that a node provides has a name that nodes provide, such as one with a suffix of `cardDevices`.
    findings = [one for one in check_card_quota(quota or "") if not (one.accepted == SLICE_FORM and
                any(f"<{card}>" in one.message for card in inventory.cards))]  # fmt: skip
    findings += _quota_of_no_card(name, inventory)
    findings += _below_ancestors(name, inventory)
    limits = {
        "capability": as_map(value_at(obj, "spec", "capability")),
        "deserved": as_map(value_at(obj, "spec", "deserved")),
        "guarantee": as_map(value_at(obj, "spec", "guarantee", "resource")),
    }
    findings += _no_devices(limits["capability"])
    for field, amounts in limits.items():
        path = "guarantee.resource" if field == "guarantee" else field
        findings += _misspelt(amounts, f"spec.{path}", inventory)
    is_parent = inventory.is_parent(name)
    findings += unenforced_limits(name, limits, annotations, plugins, is_parent=is_parent, shares=shares)
    namespaces = annotations.get(keys.QUEUE_NAMESPACES)
    if namespaces is not None and namespace_rule(namespaces).problem:
        message = f"{namespace_rule(namespaces).problem}; the queue accepts no namespace"
        findings.append(Finding("error", annotation_field(keys.QUEUE_NAMESPACES), message, NAMESPACES_FORM))
    return findings


def _quota_of_no_card(queue: str, inventory: Inventory) -> Iterator[Finding]:
    """Warnings about names in a card quota that are resources of nodes, or resemble a card of a node."""
    field = annotation_field(keys.CARD_QUOTA)
    for card in sorted((inventory.quotas.get(queue) or {}).keys() - inventory.cards.keys()):
        if card in inventory.resources_of_nodes():
            message = f"{card} is a resource, not a card: its quota limits nothing"
            of_cards = sorted(name for name, resources in inventory.card_resources.items() if card in resources)
            yield Finding("warning", field, message, listed(of_cards) if of_cards else f"spec.capability of {card}")
        elif (wrong := _alike(card, inventory.cards)) and (wrong.lower() == card.lower() or not card.isascii()):
            message = f"no node in the input provides card {escaped(card)}; did you mean {wrong}?"
            yield Finding("warning", field, message, wrong)


def _no_devices(capability: Json) -> Iterator[Finding]:
    """Warnings about limits of 0 devices of a DeviceClass."""
    for resource in sorted(capability):
        if device_quota_key(resource) is not None and base_amount_of(resource, capability[resource]) == 0:
            message = "admits no devices of the class; in Volcano 0 is no limit"
            yield Finding("warning", f'spec.capability["{resource}"]', message, "an amount above 0, or no key")


def _group_of(template: Template, obj: Json, inventory: Inventory) -> Iterator[Finding]:
    """A warning about a PodGroup that pods name and that is not in the input: the pods wait for it."""
    key = next((one for one in _GROUP_NAMES if template.annotations.get(one)), "")
    native = value_at(template.body, "spec", "schedulingGroup", "podGroupName")
    name, known, field = template.annotations.get(key, ""), inventory.groups, ""
    if key:
        field = annotation_field(key, template.metadata_path)
    elif isinstance(native, str):
        name, known = native, inventory.kube_groups
        field = f"{template.path}.spec{_GROUP_FIELD}" if template.path else f"spec{_GROUP_FIELD}"
    if not name or template.scheduler not in OUR_SCHEDULERS or not inventory.has_nodes:
        return
    namespace = namespace_of(obj)
    if (namespace, name) in known:
        return
    shown = escaped(name) if key else f"{escaped(name)} of scheduling.k8s.io"
    message = f"PodGroup {shown} is not among the objects in the input: the pods wait for it"
    near = meant(name, sorted(other for where, other in known if where == namespace))
    yield Finding("warning", field, f"{message}{near}")


def _misspelt(names: Iterable[str], path: str, inventory: Inventory) -> Iterator[Finding]:
    """Warnings about resources that no node of the input offers and whose names resemble one that nodes offer."""
    for name in sorted(names):
        if close := inventory.misspelt_resource(name):
            message = f"no node in the input offers {escaped(name)}; did you mean {close}?"
            yield Finding("warning", f'{path}["{name}"]', message, close)


def _below_ancestors(queue: str, inventory: Inventory) -> Iterator[Finding]:
    """Warnings for cards of a quota that an ancestor with a card quota does not list: it limits them to 0."""
    for card, amount in sorted((inventory.quotas.get(queue) or {}).items()):
        for ancestor, above in inventory.limits_above(queue):
            if amount and not above.get(card):
                message = f"quota of {card} has no effect: the quota of queue {ancestor} above it is 0"
                yield Finding("warning", annotation_field(keys.CARD_QUOTA), message)
                break


def _request_against(
    text: str, templates: Sequence[Template], charged: Sequence[_TemplateCards], queue: str, inventory: Inventory
) -> Iterator[Finding]:
    """Check a valid card request against the pods of the workload and the quota of the queue."""
    try:
        request = parse_card_request(text)
    except CardSyntaxError:
        return
    field = annotation_field(keys.CARD_REQUEST)
    # The request may name the alternatives in another order.
    written: dict[frozenset[str], str] = {}
    for key in request:
        written.setdefault(frozenset(key.split("|")), key)
    used: dict[str, int] = {}
    for template, charge in zip(templates, charged, strict=True):
        if charge.cards:
            key = written.get(frozenset(charge.cards)) or "|".join(charge.cards)
            used[key] = used.get(key, 0) + charge.amount * template.replicas
    for key in sorted(request.keys() - used.keys()):  # the pod templates cover the others
        yield from _check_feasible(key.split("|"), queue, inventory, field)
    if not templates or any(charge.cards is None for charge in charged):
        return
    for key in sorted(request.keys() | used.keys()):
        if request.get(key, 0) != used.get(key, 0):
            requested, needed = request.get(key, 0) / CARD, used.get(key, 0) / CARD
            yield Finding("warning", field, f"requests {requested:g} x {key}, but the pods use {needed:g}")


def _template(template: Template, charge: _TemplateCards, obj: Json, inventory: Inventory) -> Iterator[Finding]:
    annotations = template.annotations
    if keys.PREEMPTABLE in annotations and template.path:
        yield from check_choice(keys.PREEMPTABLE, annotations[keys.PREEMPTABLE], BOOLEANS, at=template.metadata_path)
    names = charge.names
    if template.scheduler not in NATIVE_SCHEDULERS and len(names) > MOST_RESOURCES:
        path = f"{template.path}.spec.containers" if template.path else "spec.containers"
        message = f"the pod requests {len(names)} resource names, such as {listed(names)}"
        yield Finding("error", path, message, f"at most {MOST_RESOURCES} resource names per pod")
        return
    if template.scheduler not in OUR_SCHEDULERS:
        if keys.CARD_NAME in annotations:
            path = f"{template.path}.spec.schedulerName" if template.path else "spec.schedulerName"
            message = f'the pods name a card, but their scheduler is "{template.scheduler or "default-scheduler"}"'
            yield Finding("warning", path, message, " or ".join(sorted(OUR_SCHEDULERS)))
        return
    if inventory.node_labels and not inventory.is_cluster:
        yield from _check_placeable(template, inventory)
        path = f"{template.path}.spec.containers" if template.path else "spec.containers"
        for finding in _misspelt(names, path, inventory):
            yield msgspec.structs.replace(finding, field=path)
    yield from check_scoring(annotations, at=template.metadata_path)
    if template.path and keys.RUNNING_ESTIMATE in annotations:
        at = annotation_field(keys.RUNNING_ESTIMATE, template.metadata_path)
        yield from check_running_estimate(annotations[keys.RUNNING_ESTIMATE], at)
    yield from check_cooldown(texts(template.body, "metadata", "labels"), annotations, at=template.metadata_path)
    at = template.metadata_path
    if not (_is_unnamed(annotations) and charge.hidden):
        unnamed = inventory.unnamed_cards
        yield from check_card_name(
            annotations,
            charge.requests,
            known=inventory.resources,
            at=at,
            unnamed=unnamed,
            has_claims=bool(value_at(template.body, "spec", "resourceClaims")),
        )
    if charge.cards and charge.amount:
        queue, _ = _queue(obj, [template])
        named = {name for name in charge.requests if is_card_resource(name, inventory.resources)}
        yield from _check_feasible(charge.cards, queue, inventory, annotation_field(keys.CARD_NAME, at), named)


def _check_placeable(template: Template, inventory: Inventory) -> Iterator[Finding]:
    """Warnings about a node selector, or required node affinity, that no node in the input satisfies."""
    found = as_map(template.body.get("spec"))
    path = f"{template.path}.spec" if template.path else "spec"
    wanted = texts(found, "nodeSelector")
    if wanted and not any(wanted.items() <= labels.items() for labels in inventory.node_labels.values()):
        message = f"{NO_NODE_MATCHES[0]} {pairs_text(wanted)}{_meant_labels(wanted, None, inventory)}"
        yield Finding("warning", f"{path}.nodeSelector", message, _NODE_LABELS)
    affinity = value_at(found, "affinity", "nodeAffinity", _REQUIRED)
    try:
        selector = msgspec.convert(affinity, NodeSelector) if isinstance(affinity, dict) else None
    except msgspec.ValidationError:
        return  # reported with the fields
    if selector is None or node_selector_problem(selector):
        return
    if not any(matches_node_selector(selector, labels, name) for name, labels in inventory.node_labels.items()):
        field = f"{path}.affinity.nodeAffinity.{_REQUIRED}"
        message = f"{NO_NODE_MATCHES[1]} {selector_text(selector)}{_meant_labels({}, selector, inventory)}"
        yield Finding("warning", field, message, _NODE_LABELS)


def _meant_labels(pairs: Mapping[str, str], selector: NodeSelector | None, inventory: Inventory) -> str:
    """The end of a sentence about labels that no node has: those that they most likely misspell, or ""."""
    return "".join(one.hint for one in absent_of(pairs, selector, inventory.node_labels))


def _task_names(obj: Json) -> set[str] | None:
    if kind_of(obj) != "Job":
        return None
    tasks = as_maps(value_at(obj, "spec", "tasks"))
    return {str(task.get("name") or f"default{index}") for index, task in enumerate(tasks)}


def _check_feasible(
    cards: Sequence[str], queue: str, inventory: Inventory, field: str, requested: Collection[str] | None = None
) -> Iterator[Finding]:
    """Warnings when no alternative has quota, is on any node, or has a resource of `requested`: the pods stay pending.

    `requested`: the resources of a pod that count cards; None when unknown.
    """
    shown = "|".join(cards)
    quota = inventory.quotas.get(queue)
    if quota is not None and not inventory.has_card_quota(queue):
        if not inventory.unlimited_cards:
            yield Finding("warning", field, no_card_quota(queue), QUOTA_FORM)
    elif quota is not None and not any(quota.get(card) for card in cards):
        accepted = ", ".join(quota) or "none: the card quota of the queue is empty"
        message = f"queue {queue} has no quota for card {shown}"
        absent = [card for card in quota if card not in inventory.cards] if inventory.has_nodes else []
        for card in cards if absent else ():
            # The quota is misspelt, not the pods.
            if card in inventory.cards and (wrong := _alike(card, absent)):
                message += f": its quota names {wrong}, which no node in the input provides; did you mean {card}?"
                accepted = card
                break
        yield Finding("warning", field, message, accepted)
    if requested is not None and all(card in inventory.card_resources and not card_resource(card) for card in cards):
        resources = {resource for card in cards for resource in inventory.card_resources[card]}
        if requested and resources.isdisjoint(requested):
            message = f"no container requests {' or '.join(sorted(resources))}, the resource of card {shown}"
            yield Finding("warning", field, f"{message}: the pod cannot be scheduled", listed(resources))
    for card in cards if inventory.has_nodes and any(one in inventory.cards for one in cards) else ():
        wrong = "" if card in inventory.cards else _alike(card, inventory.cards.keys() - set(cards))
        if wrong:
            message = f'no node in the input provides card {card}; did you mean "{wrong}"?'
            yield Finding("warning", field, message, ", ".join(sorted(inventory.cards)))
    if inventory.has_nodes and not any(card in inventory.cards for card in cards):
        close = difflib.get_close_matches(cards[0], inventory.cards, n=1)
        meant = f'; did you mean "{close[0]}"?' if close else ""
        message = f"no node in the input provides card {shown}{meant}"
        yield Finding("warning", field, message, ", ".join(sorted(inventory.cards)))


def _alike(name: str, others: Iterable[str]) -> str:
    """The name among others that resembles it most, whatever the case; "" for none."""
    by_lower = {other.lower(): other for other in others}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[close[0]] if close else ""


def _is_unnamed(annotations: Mapping[str, str]) -> bool:
    return keys.CARD_NAME not in annotations and keys.CARD_NAME_ALIAS not in annotations


def _cards(template: Template, obj: Json, inventory: Inventory, spelling: Spelling) -> _TemplateCards:
    annotations, names = template.annotations, template.resource_names()
    requests: Mapping[str, int] = template.requests() if len(names) <= MOST_RESOURCES else {}
    if _is_unnamed(annotations):
        on_workload = any(isinstance(value_at(obj, "metadata", "annotations", name), str) for name in _CARD_NAMES)
        if on_workload or not _CARD_NAMES.isdisjoint(spelling.misspelt(annotations).values()):
            return _TemplateCards(None, 0, True, requests, names)
    try:
        cards = parse_card_name(annotations.get(keys.CARD_NAME, annotations.get(keys.CARD_NAME_ALIAS)))
    except CardSyntaxError:
        return _TemplateCards(None, 0, False, requests, names)
    counted = (requests[name] for name in requests if is_card_resource(name, inventory.resources))
    return _TemplateCards(cards, max(counted, default=0), False, requests, names)


def _queue(obj: Json, templates: Sequence[Template]) -> tuple[str, str]:
    """The queue of a workload and the field that names it; "" for kinds without one."""
    spec = as_map(obj.get("spec"))
    if kind_of(obj) in ("Job", "PodGroup"):
        return str(spec.get("queue") or "default"), "spec.queue"
    for template in templates:
        name = template.annotations.get(keys.POD_QUEUE_NAME)
        if name:
            return name, annotation_field(keys.POD_QUEUE_NAME, template.metadata_path)
    name = texts(obj, "metadata", "annotations").get(keys.POD_QUEUE_NAME)
    return (name, annotation_field(keys.POD_QUEUE_NAME)) if name else ("", "")
