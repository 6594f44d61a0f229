"""The watched kinds: one row each, from which lists, watches, decoding and deltas are derived."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from capcard_sched.kube.instrumentation import UNAVAILABLE
from capcard_sched.kube.paths import collection_path
from capcard_sched.model import deltas
from capcard_sched.model import kinds as model_kinds
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.kinds import KIND_BY_NAME, Kind, WatchRule, group_of
from capcard_sched.model.kube_groups import KUBE_API, KUBE_GROUP, KubePodGroup, job_name, translated
from capcard_sched.model.objects import ObjectMeta
from capcard_sched.model.provisioning import PROVISIONING_REQUEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from capcard_sched.model.objects import NodeObject


class WatchSpec(Protocol):
    """Any decoded object."""

    @property
    def metadata(self) -> ObjectMeta:
        """Identity and labels."""


T = TypeVar("T", bound=WatchSpec)


@dataclass(frozen=True, kw_only=True)
class WatchedKind(WatchRule, Generic[T]):
    """One watched kind, or a part of its objects."""

    #: `kind` of its objects.
    name: str
    #: Path of the collection over all namespaces.
    path: str
    #: Builds the delta of an added or updated object.
    changed: Callable[[Any], Any] = deltas.ObjectChanged
    #: Whether an object is delivered at all; one that is no longer selected counts as gone. None: all are.
    selects: Callable[[T], bool] | None = None
    #: Field selector of lists and watches, "" for all objects of the path.
    field_selector: str = ""

    @property
    def resource(self) -> str:
        """As in metrics: `pods`; with its group where another kind has the resource."""
        resource = self.path.rpartition("/")[2]
        return f"{resource}.{group_of(KUBE_API)}" if self.name == KUBE_GROUP else resource

    def unavailable(self, status: int) -> str:
        """The event of a list with the status of a missing or forbidden kind."""
        event = UNAVAILABLE[status]
        return "absent" if event == "missing" and not self.expected else event

    def gone(self, meta: ObjectMeta) -> deltas.Delta:
        """The delta of an object that is gone, from its namespace and name, and the uid where it is known."""
        if self.name == KUBE_GROUP:
            return deltas.ObjectGone("PodGroup", meta.namespace or "", job_name(meta.name), meta.uid)
        return deltas.ObjectGone(self.name, meta.namespace or "", meta.name, meta.uid)

    def read_fields(self) -> Callable[[T], object]:
        """Reads the compared parts of an object: its identity, and the attributes in `reads`."""
        meta = [f"metadata.{name}" for name in ObjectMeta.__struct_fields__ if name != "resource_version"]
        fields = [name for name in self.type.__struct_fields__ if name != "metadata"]
        read, derives = attrgetter(*meta, *(fields if self.reads is None else self.reads)), self.derives
        return read if derives is None else lambda item: (read(item), derives(item))

    def undecodable(self, meta: ObjectMeta, problem: str, node: str) -> deltas.Delta | None:
        """The delta for an object with a field of a wrong type; it keeps its last known facts. None: only logged."""
        if not self.explained:
            return None
        ref: Any = self.name  # checked by the tests for every row
        return deltas.ObjectUnreadable(ObjectRef(ref, meta.namespace or "", meta.name, meta.uid), problem, node)


def _translated(group: KubePodGroup) -> deltas.ObjectChanged:
    return deltas.ObjectChanged(translated(group))


def _watched(kind: Kind, path: str = "", field_selector: str = "") -> WatchedKind[Any]:
    rule = kind.watch
    if rule is None:
        raise ValueError(f"the scheduler does not watch kind {kind.name}")

    return WatchedKind(
        **vars(rule),
        name=kind.name,
        changed=_translated if kind.name == KUBE_GROUP else deltas.ObjectChanged,
        path=path or kind.collection(),
        field_selector=field_selector,
    )


_CONFIG_MAP: Final = KIND_BY_NAME["ConfigMap"]
#: ConfigMaps are watched one by one.
KINDS: Final[tuple[WatchedKind[Any], ...]] = tuple(
    _watched(kind) for kind in model_kinds.KINDS if kind.watch is not None and kind is not _CONFIG_MAP
)


def chosen_kinds(
    *,
    node_selector: Iterable[tuple[str, str]] = (),
    priority_classes: bool = True,
    provisioning: bool = False,
    config_maps: Iterable[tuple[str, str]] = (),
) -> tuple[WatchedKind[Any], ...]:
    """`KINDS` under the flags: nodes with one of these labels (all without labels), PriorityClasses or not.

    `provisioning`: with ProvisioningRequests.
    `config_maps`: namespace and name of each ConfigMap that a plugin reads.
    """
    wanted = tuple(node_selector)

    def selected(node: NodeObject) -> bool:
        labels = node.metadata.labels or {}
        return any(labels.get(key) == value for key, value in wanted)

    chosen = [
        replace(kind, selects=selected) if kind.name == "Node" and wanted else kind
        for kind in KINDS
        if (priority_classes or kind.name != "PriorityClass") and (provisioning or kind.name != PROVISIONING_REQUEST)
    ]
    return (*chosen, *config_map_kinds(config_maps))


def config_map_kinds(config_maps: Iterable[tuple[str, str]]) -> tuple[WatchedKind[Any], ...]:
    """One kind for each ConfigMap, by namespace and name."""
    return tuple(
        _watched(_CONFIG_MAP, collection_path("ConfigMap", namespace), f"metadata.name={name}")
        for namespace, name in sorted(set(config_maps))
    )
