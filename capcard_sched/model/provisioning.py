"""ProvisioningRequests (autoscaling.x-k8s.io/v1): an autoscaler provides nodes for a whole gang, or none."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from capcard_sched.model.kube_groups import KUBE_API, job_name, kube_name
from capcard_sched.model.objects import ApiStruct, ObjectMeta
from capcard_sched.model.ownership import Owner, controller_of_meta
from capcard_sched.model.timestamps import format_timestamp, parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from capcard_sched.model.intents import RequestCapacity
    from capcard_sched.model.job import Task
    from capcard_sched.model.task_class import TaskClass

PROVISIONING_REQUEST: Final = "ProvisioningRequest"
POD_TEMPLATE: Final = "PodTemplate"
PROVISIONING_API: Final = "autoscaling.x-k8s.io/v1"
#: API version of the PodGroups of Volcano, which `model.kinds` names, too.
VOLCANO_GROUPS: Final = "scheduling.volcano.sh/v1beta1"
#: The classes of Cluster Autoscaler; "" for no requests.
ProvisioningClass: TypeAlias = Literal[
    "", "check-capacity.autoscaling.x-k8s.io", "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
]
_KUBE_GROUP: Final = KUBE_API.rpartition("/")[0]
_VOLCANO_GROUP: Final = VOLCANO_GROUPS.rpartition("/")[0]
#: Annotations of a pod that uses the capacity of a request: the name of the request, and its class.
CONSUMED_REQUEST: Final = "autoscaling.x-k8s.io/consume-provisioning-request"
CONSUMED_CLASS: Final = "autoscaling.x-k8s.io/provisioning-class-name"
#: Annotations of a request: its demand, as a digest, and how many requests of its gang failed before it.
DEMAND_DIGEST: Final = "capcard-sched.io/provisioning-demand"
FAILURES: Final = "capcard-sched.io/provisioning-failures"
#: The API accepts no more pod sets per request.
MOST_POD_SETS: Final = 32
#: Seconds between a failure and the next request: the first, doubled by each further failure, and the longest.
FIRST_BACKOFF: Final = 60.0
LONGEST_BACKOFF: Final = 1800.0
#: Seconds from the creation of a request whose capacity was revoked, or whose booking expired, to that of the next.
RENEWAL_SECONDS: Final = 60.0
#: Pending requests of one namespace: an autoscaler evaluates those of all namespaces one after another.
MOST_PENDING_REQUESTS: Final = 32
#: Seconds that the time of a condition may be ahead; one further ahead is no time of its failure.
_MOST_AHEAD: Final = 60.0
#: Characters of the name of a PodGroup in that of its request: names of PodTemplates append numbers of 10 and 2 digits.
_LONGEST_PREFIX: Final = 216
_MOST_FAILURES: Final = 99
_LONGEST_MESSAGE: Final = 256

RequestState: TypeAlias = Literal["pending", "provisioned", "failed", "expired", "revoked"]
#: Condition to state; the first that is True counts.
_STATES: Final[tuple[tuple[str, RequestState], ...]] = (
    ("CapacityRevoked", "revoked"),
    ("Failed", "failed"),
    ("BookingExpired", "expired"),
    ("Provisioned", "provisioned"),
)


_SENTENCES: Final[dict[RequestState, str]] = {
    "pending": "waits for the autoscaler",
    "provisioned": "has its nodes, or gets them now",
    "expired": "had its nodes, and the booking expired",
    "revoked": "had its nodes, and the autoscaler took them back",
}


# --- API object -----------------------------------------------------------------------------------------------------


class ProvisioningCondition(ApiStruct, frozen=True):
    type: str = ""
    status: str = ""
    message: str = ""
    last_transition_time: str | None = None


class ProvisioningPodSet(ApiStruct, frozen=True):
    count: int = 0


class ProvisioningRequestSpec(ApiStruct, frozen=True):
    pod_sets: tuple[ProvisioningPodSet, ...] | None = None
    provisioning_class_name: str = ""


class ProvisioningRequestStatus(ApiStruct, frozen=True):
    conditions: tuple[ProvisioningCondition, ...] | None = None


class ProvisioningRequestObject(ApiStruct, frozen=True, tag="ProvisioningRequest", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: ProvisioningRequestSpec = ProvisioningRequestSpec()
    status: ProvisioningRequestStatus = ProvisioningRequestStatus()


# --- facts ----------------------------------------------------------------------------------------------------------


class CapacityRequest(msgspec.Struct, frozen=True):
    """One ProvisioningRequest. It counts for a job only if `owner` is the uid of the job's PodGroup."""

    namespace: str
    name: str
    uid: str = ""
    #: Key of the job and uid of the PodGroup that owns it; "" for none.
    job: str = ""
    owner: str = ""
    #: Digest of its demand.
    digest: str = ""
    #: The number at the end of its name; 0 without one.
    number: int = 0
    #: Requests of the gang that failed before it.
    failures: int = 0
    pod_sets: int = 0
    state: RequestState = "pending"
    #: Unix seconds of the condition that decides the state, and of the creation.
    since: float = 0.0
    created: float = 0.0
    message: str = ""

    @property
    def backoff(self) -> float:
        """Seconds from its failure to the next request."""
        return backoff_of(self.failures)

    def backoff_end(self, now: float) -> float:
        """Unix seconds of the end of the backoff after its failure, which a clock that is ahead does not delay."""
        return (self.since if self.since <= now + _MOST_AHEAD else self.created) + self.backoff


def backoff_of(failures: int) -> float:
    """Seconds from a failure to the next request. `failures`: the earlier ones."""
    return min(FIRST_BACKOFF * 2.0 ** min(failures, 30), LONGEST_BACKOFF)


def owning_group(meta: ObjectMeta) -> Owner | None:
    """The PodGroup that is the controller of a request or PodTemplate."""
    found = controller_of_meta(meta)
    is_group = found is not None and found.kind == "PodGroup" and found.group in {_KUBE_GROUP, _VOLCANO_GROUP}
    return found if is_group else None


def capacity_request(obj: ProvisioningRequestObject) -> CapacityRequest:
    """The facts of a ProvisioningRequest. Never raises."""
    meta = obj.metadata
    namespace, notes, created = meta.namespace or "default", meta.annotations or {}, parse_time(meta.creation_timestamp)
    owner = owning_group(meta)
    job = ""
    if owner is not None:
        job = f"{namespace}/{job_name(owner.name) if owner.group == _KUBE_GROUP else owner.name}"
    true = {row.type: row for row in obj.status.conditions or () if row.status == "True"}
    kind, state = next(((kind, state) for kind, state in _STATES if kind in true), ("", "pending"))
    number, failures = meta.name.rpartition("-")[2], notes.get(FAILURES, "")
    return CapacityRequest(
        namespace,
        meta.name,
        meta.uid,
        job,
        "" if owner is None else owner.uid,
        notes.get(DEMAND_DIGEST, ""),
        int(number) if number.isdecimal() and len(number) < 10 else 0,
        min(int(failures), _MOST_FAILURES) if failures.isdecimal() and len(failures) < 4 else 0,
        len(obj.spec.pod_sets or ()),
        state,
        parse_time(true[kind].last_transition_time) or created if kind else created,
        created,
        true[kind].message[:_LONGEST_MESSAGE] if kind else "",
    )


# --- rules ----------------------------------------------------------------------------------------------------------


class NextStep(NamedTuple):
    """What follows for a gang with a certain demand."""

    #: `keep` the request, `wait` for a moment without a request that counts, or make a `new` one.
    action: Literal["keep", "wait", "new"]
    #: Unix seconds of the end of `wait`.
    until: float = 0.0
    #: Of a new request: how many failed before it.
    failures: int = 0


def next_step(request: CapacityRequest | None, digest: str, now: float) -> NextStep:
    """The next step of a gang whose demand has this digest, by its last request. `now`: Unix seconds.

    The spec of a request is immutable: another demand needs another request.
    """
    if request is None or request.digest != digest:
        return NextStep("new")
    if request.state == "failed":
        until = request.backoff_end(now)
        return NextStep("wait", until) if now < until else NextStep("new", failures=request.failures + 1)
    if request.state in {"expired", "revoked"}:
        until = request.created + RENEWAL_SECONDS
        return NextStep("wait", until) if now < until else NextStep("new")
    return NextStep("keep")


class DemandedPods(NamedTuple):
    """Equal pods of one role: one pod set."""

    role: str
    #: Name of the pod whose spec is the template.
    pod: str
    size: int


class CapacityDemand(NamedTuple):
    """What the minimum of a gang lacks."""

    sets: tuple[DemandedPods, ...]
    digest: str


def demand_of(tasks: Iterable[Task], provisioning_class: str) -> CapacityDemand:
    """The demand of pods: a set per role and template. Equal pods have equal digests in every process."""
    found: dict[tuple[str, str], list[str]] = {}
    contents: dict[TaskClass, str] = {}
    for task in tasks:
        if task.cls not in contents:
            contents[task.cls] = _content(task.cls)
        found.setdefault((task.role, contents[task.cls]), []).append(task.name)
    sets = sorted(found.items())
    text = repr([provisioning_class, *((role, content, len(names)) for (role, content), names in sets)])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return CapacityDemand(tuple(DemandedPods(role, min(names), len(names)) for (role, _), names in sets), digest)


def _content(cls: TaskClass) -> str:
    """The parts of a template that decide which nodes fit it, without names of the pod's own claims."""
    parts = (cls.affinity, cls.tolerations, cls.spread, cls.host_ports, cls.images)
    encoded = msgspec.json.encode(parts, enc_hook=repr, order="deterministic").decode()
    return repr((sorted(cls.requests.items()), sorted(cls.node_selector.items()), len(cls.claims), encoded))


def request_name(group: str, number: int) -> str:
    """The name of a request of a PodGroup. `group`: its name in the API."""
    if len(group) > _LONGEST_PREFIX:
        group = f"{group[:_LONGEST_PREFIX].rstrip('-.')}-{hashlib.sha256(group.encode()).hexdigest()[:8]}"
    return f"{group}-provisioning-{number}"


def template_name(request: str, index: int) -> str:
    """The name of the PodTemplate of a pod set."""
    return f"{request}-{index}"


def provisioning_text(request: CapacityRequest, now: float) -> str:
    """What a gang waits for, by its last request, as a sentence. `now`: Unix seconds."""
    about = f"{PROVISIONING_REQUEST} {request.name}"
    if request.state == "failed":
        end = format_timestamp(request.backoff_end(now))
        detail = f": {request.message}" if request.message else ""
        return f"{about} failed{detail}; the next one follows at {end}"
    return f"{about} {_SENTENCES[request.state]}"


def newest(requests: Sequence[CapacityRequest]) -> CapacityRequest | None:
    """The last request of a gang."""
    return max(requests, key=lambda one: one.number, default=None)


# --- bodies ---------------------------------------------------------------------------------------------------------

#: Fields of the spec of a pod that the API server or a scheduler sets, or that a template must not have.
_OF_ONE_POD: Final = ("nodeName", "schedulingGates", "ephemeralContainers", "hostname")


def provisioning_bodies(intent: RequestCapacity, pods: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The PodTemplates of a request, then the request, as JSON. `pods`: those that the pod sets name, as JSON."""
    kube = kube_name(intent.group)
    owner = {
        "apiVersion": KUBE_API if kube else VOLCANO_GROUPS,
        "kind": "PodGroup",
        "name": kube or intent.group,
        "uid": intent.uid,
        "controller": True,
    }
    found, sets = [], []
    for index, (each, pod) in enumerate(zip(intent.pod_sets, pods, strict=True)):
        name = template_name(intent.name, index)
        metadata = {"name": name, "namespace": intent.namespace, "ownerReferences": [owner]}
        spec = {key: value for key, value in (pod.get("spec") or {}).items() if key not in _OF_ONE_POD}
        labels = (pod.get("metadata") or {}).get("labels") or {}
        template = {"metadata": {"labels": labels}, "spec": spec}
        found.append({"apiVersion": "v1", "kind": POD_TEMPLATE, "metadata": metadata, "template": template})
        sets.append({"podTemplateRef": {"name": name}, "count": each.count})
    of_request = {
        "name": intent.name,
        "namespace": intent.namespace,
        "annotations": dict(intent.annotations),
        "ownerReferences": [owner],
    }
    spec = {"provisioningClassName": intent.provisioning_class, "podSets": sets}
    return [
        *found,
        {"apiVersion": PROVISIONING_API, "kind": PROVISIONING_REQUEST, "metadata": of_request, "spec": spec},
    ]
