"""Checks of nodes and pods with shared cards, for `validate`: what the scheduler refuses, ignores or never places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from capcard_sched.model import annotations as keys
from capcard_sched.model.card_registration import HAMI_CORE, MIG, decode_registration, handshake_state
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.quantity import QuantityError, base_amount
from capcard_sched.model.task_class import ContainerAmounts
from capcard_sched.plugins.deviceshare.geometry import geometry_of
from capcard_sched.plugins.deviceshare.vgpu_request import (
    SIDECARS_GET_NONE,
    InvalidAmountError,
    container_request,
    vgpu_amounts,
)
from capcard_sched.validation.checks import Finding, annotation_field
from capcard_sched.validation.inventory import as_map, base_amount_of, texts, value_at
from capcard_sched.validation.object_checks import OUR_SCHEDULERS
from capcard_sched.validation.templates import templates_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from capcard_sched.model.card_registration import RegisteredCard
    from capcard_sched.plugins.deviceshare.device_config import DeviceConfig
    from capcard_sched.plugins.deviceshare.vgpu_request import ContainerRequest
    from capcard_sched.validation.templates import Template

Json: TypeAlias = dict[str, Any]

#: Resources of whole cards, and those of gpushare.
_OTHER_CARDS: Final = ("nvidia.com/gpu", "volcano.sh/gpu-memory", "volcano.sh/gpu-number")
#: The beginning of warnings about requests that are larger than each node.
BEYOND_NODES: Final = "requests "
_HANDSHAKE_FORM: Final = "Requesting_2025.07.22 11:59:00, in UTC"


class _Place(NamedTuple):
    """A container, and its path inside the object."""

    path: str
    amounts: ContainerAmounts

    def field(self, resource: str) -> str:
        side = "limits" if resource in dict(self.amounts.limits) else "requests"
        return f'{self.path}.resources.{side}["{resource}"]'


def check_devices(
    objects: Sequence[Json], config: DeviceConfig, *, is_enabled: bool = True
) -> Iterator[tuple[int, Finding]]:
    """All findings in order, each with the index of its object. Objects may be malformed: nothing here raises.

    `is_enabled`: the scheduler-conf has the plugin deviceshare.
    """
    if not is_enabled:
        for index, obj in enumerate(objects):
            asked = {name for one in templates_of(obj) if one.scheduler in OUR_SCHEDULERS for name in one.requests()}
            for name in sorted(asked & {config.resources.number, config.resources.memory})[-1:]:
                message = f"the pods request {name}, and the scheduler-conf has no plugin deviceshare: they get no card"
                yield index, Finding("warning", "spec", message, "the plugin deviceshare with VGPUEnable: true")
    nodes: list[tuple[RegisteredCard, ...]] = []
    for index, obj in enumerate(objects):
        if kind_of(obj) == "Node":
            text = texts(obj, "metadata", "annotations").get(keys.NODE_VGPU_REGISTER)
            if text is not None:
                nodes.append(decode_registration(text).cards)
                yield from ((index, finding) for finding in _node(obj, nodes[-1], config))
    for index, obj in enumerate(objects):
        for template in templates_of(obj):
            if template.scheduler in OUR_SCHEDULERS:
                yield from ((index, finding) for finding in _template(template, nodes, config))


def _node(obj: Json, cards: Sequence[RegisteredCard], config: DeviceConfig) -> Iterator[Finding]:
    field = annotation_field(keys.NODE_VGPU_REGISTER)
    for type in dict.fromkeys(card.type for card in cards if card.mode == MIG):
        if geometry_of(type, config.geometries) is None:
            message = f"no MIG geometry for {type}: its cards are shared as {HAMI_CORE}"
            yield Finding("warning", field, message, "a model of knownMigGeometries")
    if len({card.mode for card in cards}) > 1:
        message = "cards of both modes: a pod with an annotation for the mode gets only cards of that mode"
        yield Finding("note", field, message)
    if cards and not any(card.healthy for card in cards):
        yield Finding("warning", field, "every card is unhealthy; health is ignored while the node offers shares")
    resource = config.resources.number
    listed = as_map(value_at(obj, "status", "allocatable")) or as_map(value_at(obj, "status", "capacity"))
    if cards and base_amount_of(resource, listed.get(resource)) <= 0:
        message = "the node registers cards and offers no vGPUs: it takes no pod that requests them"
        slots = sum(card.slots for card in cards)
        yield Finding("warning", f'status.allocatable["{resource}"]', message, f"the slots of all cards: {slots}")
    handshake = texts(obj, "metadata", "annotations").get(keys.NODE_VGPU_HANDSHAKE)
    if handshake is not None and handshake_state(handshake, 0.0) == "unreadable":
        message = f'"{handshake[:64]}" has no readable time; the device plugin counts as alive'
        yield Finding("warning", annotation_field(keys.NODE_VGPU_HANDSHAKE), message, _HANDSHAKE_FORM)


def _template(template: Template, nodes: Sequence[Sequence[RegisteredCard]], config: DeviceConfig) -> Iterator[Finding]:
    spec = template.body.get("spec")
    path = f"{template.path}.spec" if template.path else "spec"
    shared = False
    for place in _containers(spec, "containers", path):
        wanted = yield from _container(place, config)
        shared = shared or wanted is not None
        if wanted is not None and nodes:
            yield from _against_nodes(place, wanted, nodes, config)
    for place in _containers(spec, "initContainers", path):
        for resource in vgpu_amounts(place.amounts, config.resources):
            if place.amounts.sidecar:
                message = f"sidecars get no vGPUs: {SIDECARS_GET_NONE}; the pod fits on no node"
                yield Finding("error", place.field(resource), message, "vGPUs in spec.containers")
            else:
                message = "init containers get no vGPUs: the resource has no effect"
                yield Finding("warning", place.field(resource), message)
    if shared:
        yield from _annotations(template)


def _containers(spec: Any, key: str, path: str) -> Iterator[_Place]:
    listed = spec.get(key) if isinstance(spec, dict) else None
    for index, container in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(container, dict):
            resources = container.get("resources")
            sides = [resources.get(side) if isinstance(resources, dict) else None for side in ("limits", "requests")]
            limits, requests = (tuple(_amounts(side)) for side in sides)
            is_init = key != "containers"
            is_sidecar = is_init and container.get("restartPolicy") == "Always"
            amounts = ContainerAmounts(str(container.get("name") or index), limits, requests, is_init, is_sidecar)
            yield _Place(f"{path}.{key}[{index}]", amounts)


def _amounts(side: Any) -> Iterator[tuple[str, int]]:
    for name, raw in side.items() if isinstance(side, dict) else ():
        try:
            amount = base_amount(str(name), raw) if isinstance(raw, (str, int, float)) else None
        except QuantityError:
            continue  # the schema check reports it
        if amount is not None:
            yield str(name), amount


def _container(place: _Place, config: DeviceConfig) -> Generator[Finding, None, ContainerRequest | None]:
    """Findings of one container; returns its request, None when it requests no vGPU or for nothing valid."""
    names, amounts = config.resources, place.amounts
    given = vgpu_amounts(amounts, names)
    asks = {name for name, _ in amounts.limits} & {names.number, names.memory}
    if given and not asks:
        message = f"has no effect without {names.number} or {names.memory} in the limits: the pod gets no vGPU"
        for resource in given:
            yield Finding("warning", place.field(resource), message)
        return None
    if not asks:
        return None
    try:
        wanted = container_request(amounts, names)
    except InvalidAmountError as error:
        for problem in error.problems:
            message = f"is {problem.shown}: the pod fits on no node"
            yield Finding("error", place.field(problem.resource), message, problem.form)
        return None
    if wanted is None:
        yield Finding("warning", place.field(names.number), "is 0: the container gets no vGPU", "1 or more")
        return None
    if wanted.share.memory and names.percentage in given:
        yield Finding("warning", place.field(names.percentage), f"is ignored beside {names.memory}")
    for other in _OTHER_CARDS:
        if other in dict(amounts.limits):
            message = f"is requested beside {names.number}: the container gets shared cards and these"
            yield Finding("warning", place.field(other), message)
    return wanted


def _against_nodes(
    place: _Place, wanted: ContainerRequest, nodes: Sequence[Sequence[RegisteredCard]], config: DeviceConfig
) -> Iterator[Finding]:
    """Requests beyond every node of the input: the pod stays pending."""
    names = config.resources
    most = max(len(cards) for cards in nodes)
    if wanted.number > most:
        asked = names.number if names.number in dict(place.amounts.limits) else names.memory
        message = f"{BEYOND_NODES}{wanted.number} cards on one node; the largest node of the input registers {most}"
        yield Finding("warning", place.field(asked), message)
    largest = max((card.memory for cards in nodes for card in cards), default=0)
    if wanted.share.memory > largest:
        message = f"{BEYOND_NODES}{wanted.share.memory:,} of each card; the largest card of the input has {largest:,}"
        yield Finding("warning", place.field(names.memory), message)


def _annotations(template: Template) -> Iterator[Finding]:
    notes, at = template.annotations, template.metadata_path
    mode = notes.get(keys.VGPU_MODE, "").strip()
    if mode and mode not in (HAMI_CORE, MIG):
        message = f'"{mode[:64]}": no card works in this mode'
        yield Finding("error", annotation_field(keys.VGPU_MODE, at), message, f"{HAMI_CORE}, {MIG}")
    policy = notes.get(keys.VGPU_PODGROUP_POLICY, "").strip()
    if policy and policy != "spread":
        message = f'"{policy[:64]}" has no effect'
        yield Finding("warning", annotation_field(keys.VGPU_PODGROUP_POLICY, at), message, "spread")
    if keys.USE_GPU_TYPE in notes and keys.NOUSE_GPU_TYPE in notes:
        message = f"is ignored beside {keys.USE_GPU_TYPE}"
        yield Finding("warning", annotation_field(keys.NOUSE_GPU_TYPE, at), message)
    use, avoid = (
        {part.strip() for part in notes.get(key, "").split(",")} - {""}
        for key in (keys.VGPU_USE_UUID, keys.VGPU_NOUSE_UUID)
    )
    if use and use <= avoid:
        message = f"excludes every card of {keys.VGPU_USE_UUID}: the pod fits on no node"
        yield Finding("error", annotation_field(keys.VGPU_NOUSE_UUID, at), message)
