"""The statements of a vector: `pod a/a-0..2 @n1 cpu=2` is three calls of `Harness.pod`.

A statement is a method of the harness, names, bare words and `key=value`. Statements end with `;` or a newline; a line
that is indented continues the one before.

* Names: `a,b` or `p0..3`, which is p0,p1,p2,p3; one call each, in this order.
* `pod a/x`: pod x of group a (`pod x`: group g; `pod -/x`: of no group). `group b/a`: group a of queue b (default: q).
* `@n1`: the node of a pod. `cards n1 A:10000`: a node with shared cards, `share p 1000 cores=10`: a
  pod that requests a share. A bare word is the phase of a pod or group, the state of a queue, the card of a gpu_node.
* `request=A|B:2` and `service=training` on a group: its annotations card.request and service.type.
* `2*NVIDIA-H200` on a pod: two cards, and the name of the card. On a gpu_node: a card and its count.
* `cpu=2`, `memory=1Gi`, `gpu=2` on a pod: its requests; `+` and `-`: a switch on or off (`-reclaimable`).
* `since=Ready:60`: conditions of a pod that are true, and since how many seconds after midnight. `claims=a,b`: the
  claims that its volumes use, `devices=a,b`: its ResourceClaims. `ebs=1,2`: volumes of AWS in the pod itself.
  `port=80/UDP`: a port of its host. `on=n1,n2`: the nodes that a volume is bound to.
* `whole p 6`: a Guaranteed pod of six CPUs (`whole p a:6,b:2`: of two containers) that may name a `policy`; `numa n
  free=0-3 pods=p`: the Numatopology of a node and the pods that it shows.
* ProvisioningRequests exist once they are created: `condition g-provisioning-1 Failed` makes a condition True,
  `refuse g-provisioning-1` is the response to its creation, with `+unavailable` for a kind that is not served.
* `object x kind=ResourceQuota spec={...}`: an object as the API server sends it. `usage n1 cpu=40`: a measured load.
* In `affinity` and spread constraints: `required` and `preferred` (DuringSchedulingIgnoredDuringExecution), `per: zone`
  for a topologyKey, `of: {app: web}` for a labelSelector of matchLabels.
* A mapping is `key:value,key:value` or YAML in braces; lists are YAML in brackets.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from capcard_sched.framework.core import StepResult
from capcard_sched.framework.session.session_deadline import QueueCut
from capcard_sched.model import annotations as keys
from capcard_sched.model import deltas
from capcard_sched.model.card_budgets import ROLLING, hours_text, use_of
from capcard_sched.model.card_registration import RegisteredCard, encode_registration
from capcard_sched.model.intents import RequestCapacity, WithdrawRequest
from capcard_sched.model.kinds import KINDS
from capcard_sched.model.kube_groups import KubePodGroup, translated
from capcard_sched.model.objects import PodObject
from capcard_sched.model.provisioning import PROVISIONING_REQUEST, ProvisioningRequestObject
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.model.usage import NodeUsage
from capcard_sched.testing import Harness
from capcard_sched.testing.storage import on_nodes
from tests.objects import stamp
from tests.unit.plugins.deviceshare.worlds import L40S
from tests.unit.plugins.numa_aware.machines import POLICY, SINGLE, container, numatopology

#: Short names of arguments.
ALIASES: Final = {
    "min": "min_member",
    "roles": "min_task_member",
    "amounts": "min_resources",
    "class": "priority_class",
}
#: Requests of pods that may be arguments of their own.
REQUESTS: Final = {"cpu": "cpu", "memory": "memory", "gpu": "nvidia.com/gpu"}
#: Annotations of groups that may be arguments of their own.
NOTES: Final = {"request": keys.CARD_REQUEST, "service": keys.SERVICE_TYPE}
NUMBER, MEMORY, CORES = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"
#: Short names of fields of affinity and spread constraints.
FIELDS: Final = {
    "required": "requiredDuringSchedulingIgnoredDuringExecution",
    "preferred": "preferredDuringSchedulingIgnoredDuringExecution",
    "per": "topologyKey",
}
#: Arguments that a statement hands over to the method of a node or a pod.
_MAPPINGS: Final = ("annotations", "labels", "nodeSelector", "resources")
_RANGE: Final = re.compile(r"^(.*?)(\d+)\.\.(\d+)$")


def _group_reference(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "controller": True, **fields}


class VectorHarness(Harness):
    """The harness with statements for what has no method of its own."""

    def __init__(self, conf: str | None = None, **options: Any) -> None:
        super().__init__(conf, **options)
        #: ProvisioningRequests by name.
        self._requests: dict[str, dict[str, Any]] = {}

    def do(self, text: str) -> None:
        """Execute statements."""
        for verb, args, kwargs in calls(text):
            getattr(self, verb)(*args, **kwargs)

    def step(self, now: float | None = None, cuts: Mapping[str, QueueCut] | None = None) -> StepResult:
        """As `Harness.step`; ProvisioningRequests are created, unless the name is taken, and deleted."""
        result = super().step(now, cuts)
        for intent in result.intents:
            if isinstance(intent, RequestCapacity) and intent.name not in self._requests:
                owner = _group_reference(name=intent.group, uid=intent.uid)
                sets = [{"count": each.count} for each in intent.pod_sets]
                self.request(intent.name, owner=owner, sets=sets, notes=intent.annotations)
            elif isinstance(intent, WithdrawRequest) and self._requests.pop(intent.name, None) is not None:
                self.apply(deltas.ObjectGone(PROVISIONING_REQUEST, "default", intent.name))
        return result

    def request(
        self,
        name: str,
        *,
        owner: Mapping[str, Any] | None = None,
        sets: list[dict[str, int]] | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """A ProvisioningRequest; without `owner` one of another client."""
        created = format_timestamp(self.now)
        metadata = {"name": name, "namespace": "default", "uid": f"{name}-{created}", "creationTimestamp": created}
        owners = [_group_reference(**owner)] if owner else None
        body = {
            "kind": PROVISIONING_REQUEST,
            "metadata": {**metadata, "annotations": notes, "ownerReferences": owners},
            "spec": {"podSets": sets},
            "status": {"conditions": []},
        }
        self._requests[name] = body
        self.apply(deltas.ObjectChanged(msgspec.convert(body, ProvisioningRequestObject)))

    def condition(self, name: str, kind: str, *, message: str = "no such nodes") -> None:
        """A condition of a ProvisioningRequest is True from now on."""
        body = self._requests[name]
        row = {"type": kind, "status": "True", "message": message, "lastTransitionTime": format_timestamp(self.now)}
        body["status"]["conditions"].append(row)
        self.apply(deltas.ObjectChanged(msgspec.convert(body, ProvisioningRequestObject)))

    def delete_request(self, name: str) -> None:
        """Another client deletes a ProvisioningRequest."""
        del self._requests[name]
        self.apply(deltas.ObjectGone(PROVISIONING_REQUEST, "default", name))

    def refuse(self, name: str, *, group: str = "g", unavailable: bool = False) -> None:
        """The API server refused the creation of a ProvisioningRequest."""
        self.apply(deltas.CapacityRequestRefused("default", name, group, "not accepted", unavailable))

    def kube_group(self, name: str, *, gang: int = 0, annotations: dict[str, str] | None = None, **spec: Any) -> None:
        """A PodGroup of `scheduling.k8s.io`; without `gang` of the policy basic."""
        policy: dict[str, Any] = {"gang": {"minCount": gang}} if gang else {"basic": {}}
        meta = {"name": name, "namespace": "default", "uid": f"kube-{name}", "annotations": annotations}
        body = {"metadata": meta, "spec": {"schedulingPolicy": policy, **spec}}
        self._deltas.append(deltas.ObjectChanged(translated(msgspec.convert(body, KubePodGroup))))

    def plugin(self, name: str) -> Any:
        """A plugin of the conf; `quota`: proportion or capacity, unless a plugin has this name."""
        found = {plugin.name for plugin in self.core.snapshot().dispatch.plugins}
        if name == "quota" and name not in found:
            [name] = found & {"proportion", "capacity"}
        return super().plugin(name)

    def object(self, name: str, *, kind: str, **body: Any) -> None:
        """Add or replace an object of a kind that the scheduler reads; `metadata` may add to its name."""
        [watch] = [one.watch for one in KINDS if one.name == kind and one.watch is not None]
        body["metadata"] = {"name": name, **body.get("metadata", {})}
        self.apply(deltas.ObjectChanged(msgspec.convert(body, watch.type)))

    def local_queue(
        self,
        name: str,
        *,
        parent: str | None = None,
        capability: Mapping[str, Any] | None = None,
        deserved: Mapping[str, Any] | None = None,
        guarantee: Mapping[str, Any] | None = None,
        created: int = 0,
        state: str = "Open",
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Add or replace a NamespaceQueue, written `namespace/name`; `created`: seconds after midnight."""
        namespace, _, name = name.partition("/")
        meta = {"namespace": namespace, "uid": f"{namespace}-{name}", "annotations": annotations}
        meta["creationTimestamp"] = stamp(created)
        spec = {"parent": parent, "capability": capability, "deserved": deserved}
        spec["guarantee"] = None if guarantee is None else {"resource": guarantee}
        self.object(name, kind="NamespaceQueue", metadata=meta, spec=spec, status={"state": state})

    def evict_failed(self, name: str) -> None:
        """The API server refuses the eviction of a pod."""
        self.apply(deltas.EvictFailed("default", name, self.task(name).uid, "a disruption budget"))

    def bind_failed(self, name: str) -> None:
        """The API server refuses the binding of a pod."""
        self.apply(deltas.BindFailed("default", name, self.task(name).uid, "refused", retry_after=60.0))

    def takeover(self, _: str) -> None:
        """The term of a replica begins anew."""
        self.apply(deltas.Takeover())

    def delete_object(self, name: str, *, kind: str, namespace: str = "") -> None:
        """Delete an object."""
        self.apply(deltas.ObjectGone(kind, namespace, name))

    def numa(
        self,
        node: str,
        *,
        free: str | bool = "0-15",
        policy: str = SINGLE,
        manager: str = "static",
        pods: str = "",
        **more: Any,
    ) -> None:
        """Add or replace the Numatopology of a node (`-free`: without CPUs); `pods`: by UID, or `default/p` by name."""
        found = [name.partition("/") for name in pods.split(",") if name]
        shown = [{"namespace": one, "name": two} if two else {"uid": f"default-{one}-uid"} for one, _, two in found]
        given = free if isinstance(free, str) else None
        self.apply(numatopology(node, given, policy, manager=manager, pods=tuple(shown), **more))

    def whole(self, name: str, cpus: Any, *, policy: str = "", **more: Any) -> None:
        """A Guaranteed pod."""
        parts = [part.rpartition(":") for part in str(cpus).split(",")]
        more["containers"] = [container(one or "main", count) for one, _, count in parts]
        self.pod(name, annotations={POLICY: policy} if policy else {}, **more)

    def resource_quota(self, name: str, *, hard: Mapping[str, str], used: Mapping[str, str] | None = None) -> None:
        """Add or replace a ResourceQuota; without `used` its controller has not seen it."""
        status = {} if used is None else {"hard": hard, "used": used}
        self.object(name, kind="ResourceQuota", metadata={"namespace": "default"}, spec={"hard": hard}, status=status)

    def card_budget(
        self,
        name: str,
        *,
        cards: Mapping[str, str],
        used: Mapping[str, str] | None = None,
        queue: str = "q",
        period: str = "month",
        spent: str = "stop",
    ) -> None:
        """Add or replace a CardBudget; without `used` it has no status. `spent`: its `whenSpent`."""
        status: dict[str, Any] = {}
        if used is not None:
            left = {card: use_of(cards[card].removesuffix("h") + "h") - use_of(text) for card, text in used.items()}
            status = {"used": used, "remaining": {card: hours_text(amount) for card, amount in left.items()}}
            status |= {} if period == ROLLING else {"periodEnd": "2026-02-01T00:00:00Z"}
        spec = {"queue": queue, "period": period, "whenSpent": spent, "cards": cards}
        self.object(name, kind="CardBudget", metadata={"uid": f"{name}-uid"}, spec=spec, status=status)

    def budget(
        self,
        name: str,
        *,
        namespace: str = "default",
        of: Mapping[str, str] | None = None,
        selector: Any = None,
        allowed: int | None = None,
        disrupted: Mapping[str, str] | None = None,
    ) -> None:
        """Add or replace a PodDisruptionBudget; without `allowed` its controller has not seen it."""
        given = {"disruptionsAllowed": allowed, "disruptedPods": disrupted}
        status = {field: found for field, found in given.items() if found is not None}
        spec = {"selector": {"matchLabels": of} if selector is None else selector}
        self.object(name, kind="PodDisruptionBudget", metadata={"namespace": namespace}, spec=spec, status=status)

    def usage(
        self, node: str, *, cpu: float | None = None, memory: float | None = None, at: float | None = None
    ) -> None:
        """Measure the load of a node in percent; `at`: Unix seconds."""
        self.apply(deltas.NodeUsageChanged({node: NodeUsage(cpu, memory, at)}))

    def delete_usage(self, node: str) -> None:
        """End the measurement of a node."""
        self.apply(deltas.NodeUsageGone(node))

    def cards(
        self,
        node: str,
        *cards: str | RegisteredCard,
        annotations: dict[str, str] | None = None,
        offered: int | None = None,
        register: str | None = None,
        **more: Any,
    ) -> None:
        """A node with cards, written `uuid:memory` for an L40S of ten slots, or a registration as text."""
        found = []
        for card in cards:
            if isinstance(card, str):
                uuid, size = card.split(":")
                found.append(RegisteredCard(uuid, 10, int(size), L40S, healthy=True, mode="hami-core"))
            else:
                found.append(card)
        notes = {keys.NODE_VGPU_REGISTER: encode_registration(tuple(found)) if register is None else register}
        number = sum(card.slots for card in found) if offered is None else offered
        memory = sum(card.memory for card in found)
        resources = {NUMBER: number, **({MEMORY: memory, CORES: 100 * len(found)} if register is None else {})}
        resources |= more.pop("resources", {})
        self.node(node, annotations={**notes, **(annotations or {})}, resources=resources, **more)

    def share(
        self,
        name: str,
        memory: int | None = None,
        *,
        number: int = 1,
        cores: int | None = None,
        limits: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """A pod of one container that requests shares."""
        amounts = {NUMBER: number, MEMORY: memory, CORES: cores}
        wanted = {name: amount for name, amount in amounts.items() if amount is not None}
        self.pod(name, limits={**wanted, **(limits or {})}, **more)

    def device_claim(
        self,
        name: str,
        *,
        asks: Mapping[str, int] | None = None,
        first: Mapping[str, int] | None = None,
        capacity: Mapping[str, Any] | None = None,
        mode: str = "ExactCount",
        admin: bool = False,
        got: Mapping[str, int] | None = None,
    ) -> None:
        """Add or replace a ResourceClaim: one request per class in `asks`, and one for the first of `first`.

        `got`: the number of devices by request that it is allocated.
        """
        more = {"capacity": {"requests": capacity}} if capacity else {}
        made = {"allocationMode": mode, "adminAccess": admin, **more}
        requests: list[dict[str, Any]] = [
            {"name": each, "exactly": {"deviceClassName": each, "count": count, **made}}
            for each, count in (asks or {}).items()
        ]
        if first:
            found = [{"name": each, "deviceClassName": each, "count": count, **made} for each, count in first.items()]
            requests.append({"name": "one", "firstAvailable": found})
        results = [
            {"request": request, "driver": "gpu.example.com", "pool": name, "device": f"{request}-{number}"}
            for request, count in (got or {}).items()
            for number in range(count)
        ]
        status = {"allocation": {"devices": {"results": results}}} if got else {}
        meta = {"namespace": "default", "uid": f"{name}-uid"}
        self.object(name, kind="ResourceClaim", metadata=meta, spec={"devices": {"requests": requests}}, status=status)

    def generated(self, name: str, *, claim: str) -> None:
        """The status of a pod names the ResourceClaim that is generated for its only entry."""
        obj = self._pods[f"default/{name}"]
        [entry] = obj["spec"]["resourceClaims"]
        obj["status"]["resourceClaimStatuses"] = [{"name": entry["name"], "resourceClaimName": claim}]
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(obj, PodObject)))

    def uses(self, node: str) -> list[tuple[int, int, int]]:
        """Number, memory and cores in use of each card."""
        ledger = self.plugin("deviceshare").rows.by_node[node].ledgers[0]
        return [(card.use.number, card.use.memory, card.use.cores) for card in ledger.cards]


class Call(NamedTuple):
    """One call of the harness."""

    verb: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def names(text: str) -> list[str]:
    """The names that a list with ranges stands for."""
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.match(part)
        if match is None:
            found.append(part)
        else:
            stem, first, last = match.group(1), int(match.group(2)), int(match.group(3))
            found += [f"{stem}{number}" for number in range(first, last + 1)]
    return found


def calls(text: str) -> list[Call]:
    """The calls of some statements; ValueError names the statement that is not understood."""
    found: list[Call] = []
    for statement in _split(text):
        try:
            found += _calls(_tokens(statement))
        except (AttributeError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
            raise ValueError(f"statement <{statement}>: {error}") from error
    return found


def statements(text: str) -> list[list[str]]:
    """The words of each statement."""
    return [_tokens(statement) for statement in _split(text)]


def _split(text: str) -> list[str]:
    text = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    return _parts(re.sub(r"\n[ \t]+", " ", text), ";\n")


def _tokens(statement: str) -> list[str]:
    return _parts(statement, " ")


def _parts(text: str, separators: str) -> list[str]:
    """The parts between separators, without empty ones. Separators in brackets and quotes do not count."""
    found, start, depth, quote = [], 0, 0, ""
    for index, char in enumerate(text + separators[0]):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
        elif char in separators and depth == 0:
            found.append(text[start:index].strip())
            start = index + 1
    if depth or quote:
        raise ValueError(f"statement <{text[start:].strip()}>: a bracket or quote is not closed")
    return [part for part in found if part]


def _calls(tokens: list[str]) -> list[Call]:
    verb, *rest = tokens
    signature = inspect.signature(getattr(VectorHarness, verb))
    kwargs: dict[str, Any] = {}
    args: list[Any] = []
    subject = ""
    if rest and "=" not in rest[0].split("{")[0]:
        subject, *rest = rest
    if not subject:
        raise ValueError("no name")
    owner = ""
    if verb in ("pod", "share", "whole", "group") and "/" in subject:
        owner, _, subject = subject.partition("/")
        kwargs["queue" if verb == "group" else "group"] = None if owner == "-" else owner
    for token in rest:
        key, equals, text = token.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]+", key):
            _argument(verb, signature, ALIASES.get(key, key), text, kwargs)
        elif token.startswith("@"):
            kwargs["node"] = token[1:]
        elif token[0] in "+-":
            kwargs[token[1:]] = token[0] == "+"
        else:
            _bare(verb, token, kwargs, args)
    return [Call(verb, (name, *args), dict(kwargs)) for name in names(subject)]


def _argument(verb: str, signature: inspect.Signature, key: str, text: str, kwargs: dict[str, Any]) -> None:
    if verb == "pod" and key in REQUESTS:
        kwargs.setdefault("requests", {})[REQUESTS[key]] = text
        return
    if (verb, key) in SPELLED:
        field, spell = SPELLED[verb, key]
        kwargs[field] = spell(text)
        return
    if verb == "group" and key in NOTES:
        note = json.dumps(value(text, "Mapping")) if key == "request" else text
        kwargs.setdefault("annotations", {})[NOTES[key]] = note
        return
    declared = signature.parameters.get(key)
    undeclared = "Mapping[str, str]" if key in _MAPPINGS else "Any"
    found = value(text, str(declared.annotation) if declared is not None else undeclared)
    kwargs[key] = _with_fields(found) if key in ("affinity", "topologySpreadConstraints") else found


def _conditions(text: str) -> list[dict[str, str]]:
    """`Ready:60`: true since a minute after midnight."""
    times = value(text, "Mapping").items()
    return [{"type": name, "status": "True", "lastTransitionTime": stamp(second)} for name, second in times]


def _claims(text: str) -> list[dict[str, Any]]:
    return [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": name}} for i, name in enumerate(names(text))]


def _device_claims(text: str) -> list[dict[str, Any]]:
    return [{"name": name, "resourceClaimName": name} for name in names(text)]


def _ebs(text: str) -> list[dict[str, Any]]:
    return [{"name": f"v{i}", "awsElasticBlockStore": {"volumeID": name}} for i, name in enumerate(names(text))]


def _with_port(text: str) -> list[dict[str, Any]]:
    """`80/UDP/10.0.0.1`: a container with this port of its host; TCP of all addresses by default."""
    port, _, rest = text.partition("/")
    protocol, _, address = rest.partition("/")
    ports = [{"containerPort": 1, "hostPort": int(port), "protocol": protocol or "TCP", "hostIP": address}]
    return [{"name": "main", "resources": {"requests": {"cpu": "1"}}, "ports": ports}]


#: Arguments in few words: the argument that the harness takes, and its value of the text.
SPELLED: Final[Mapping[tuple[str, str], tuple[str, Callable[[str], Any]]]] = {
    ("pod", "since"): ("conditions", _conditions),
    ("pod", "claims"): ("volumes", _claims),
    ("pod", "devices"): ("resourceClaims", _device_claims),
    ("pod", "ebs"): ("volumes", _ebs),
    ("pod", "port"): ("containers", _with_port),
    ("volume", "on"): ("affinity", lambda text: on_nodes(*names(text))),
}


def _with_fields(found: Any) -> Any:
    """The value with the whole names of fields."""
    if isinstance(found, list):
        return [_with_fields(item) for item in found]
    if not isinstance(found, dict):
        return found
    whole = {FIELDS.get(key, key): _with_fields(item) for key, item in found.items() if key != "of"}
    return whole if "of" not in found else {**whole, "labelSelector": {"matchLabels": found["of"]}}


def _bare(verb: str, token: str, kwargs: dict[str, Any], args: list[Any]) -> None:
    if "=" in token:
        raise ValueError(f"<{token}> has no key")
    count, star, card = token.partition("*")
    if verb in ("pod", "gpu_node") and star:
        kwargs["cards" if verb == "pod" else "count"] = int(count)
        kwargs["card"] = card
    elif verb in ("pod", "group") or (verb in ("share", "whole") and token.istitle()):
        kwargs["phase"] = token
    elif verb == "queue":
        kwargs["state"] = token
    elif verb == "gpu_node":
        kwargs["card"] = token
    else:
        args.append(value(token, "Any"))


def value(text: str, annotation: str) -> Any:
    """The value of an argument with this annotation."""
    if text.startswith(("{", "[", "'", '"')):
        return yaml.safe_load(text)
    if annotation.startswith("Mapping"):
        text_values = annotation.startswith("Mapping[str, str]")
        pairs = [pair.partition(":") for pair in text.split(",")] if text else []
        return {key: found if text_values else yaml.safe_load(found) for key, _, found in pairs}
    if annotation.startswith("str"):
        return text
    return yaml.safe_load(text)
