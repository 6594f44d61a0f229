"""Malformed pods."""

from __future__ import annotations

from typing import Any

from capcard_sched.model.quoting import escaped
from capcard_sched.testing import Harness
from tests.malformed.case import BOUND, UNSEEN, Case, card_pod, charge_error, invalid, pod, refused
from tests.malformed.world import BAD_QUANTITIES, BIG, GPU, HOST, NO_NUMBER, WarningEvent, World

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

# --- cards ----------------------------------------------------------------------------------------------------------


def unknown(id: str, text: str) -> Case:
    """No card of the annotation is in the cluster."""
    return charge_error(id, f"no resource name found for card <{escaped(text)}>", card_name=text)


def empty(id: str, text: str, key: str = "card_name") -> Case:
    """An alternative is empty."""
    return charge_error(id, f"invalid card name <{text}>: empty alternative", **{key: text})


def holds(amount: int) -> Any:
    """The charge of queue `q` for card A, with the healthy gang's 2000."""
    return lambda w: w.h.plugin("capacity-card").accounts.ledger.queues["q"].own.allocated.cards == {"A": 2000 + amount}


NO_GPU = f"no resource <{GPU}> defined in requests/limits for card <A>"

CARDS = [
    empty("between bars", "A||B"),
    empty("blanks around a bar", " | "),
    empty("under the old spelling", "A||B", "card_card"),
    unknown("one card", "NOPE"),
    unknown("every alternative", "NOPE|NEIN"),
    unknown("the wrong case", "a"),
    unknown("JSON", '["A"]'),
    unknown("a control character", "\x00"),
    unknown("huge", "x" * 50_000),
    unknown("thousands of alternatives", "|".join(f"card-{i}" for i in range(2000))),
    card_pod("some alternatives unknown", BOUND, card_name="NOPE|A", check=holds(1000)),
    card_pod("blanks around a card", BOUND, card_name=" A \n", check=holds(1000)),
    card_pod("the same card again and again", BOUND, card_name="A|" * 2000 + "A", check=holds(1000)),
    card_pod("both spellings", BOUND, card_name="A", card_card="A||B", check=holds(1000)),
    card_pod("empty", BOUND, card_name="", check=holds(1000)),
    pod("card without its resource", f"Get request resource failed, Queue <q>, error: <{NO_GPU}>",
        *refused("GetTaskRequestResourceFailed", f"Get request resource failed, Queue <q>, error: <{NO_GPU}>"),
        card="A"),
    pod("card with none of its resource", BOUND, card="A", requests={"cpu": "1", GPU: 0}, check=holds(0)),
    pod("half a card", BOUND, card="A", requests={"cpu": "1", GPU: "500m"}, check=holds(1000)),
    *(
        card_pod(f"assigned: {id}", BOUND, card_name="A|B", card_assigned=text, check=holds(1000))
        for id, text in (("not accepted", "C"), ("a bar", "|"), ("empty", ""), ("huge", "x" * 50_000))
    ),
    pod("assigned: not accepted, on a pod that runs", BOUND, node="good", annotations={
        "volcano.sh/card.name": "A|B", "volcano.sh/card.assigned": "C"}, requests={GPU: 1}, check=holds(1000)),
    # A running pod is charged the card of its node.
    pod("card name with an empty alternative, on a pod that runs", BOUND,
        node="good", card="A|", requests={"cpu": "1", GPU: 1}, check=holds(1000)),
]  # fmt: skip

# --- other annotations ----------------------------------------------------------------------------------------------


def priority(value: int) -> Any:
    return lambda w: w.h.task("bad").priority == value


def preemptable(*, value: bool | None) -> Any:
    return lambda w: w.h.task("bad").preemptable is value


ANNOTATIONS = [
    # A value that is not a 32-bit integer has no effect on the priority.
    *(
        card_pod(f"task priority: {id}", BOUND, card_name="A", task__priority=text, check=priority(1))
        for id, text in (
            ("a word", "high"), ("an exponent", "1e3"), ("a fraction", "1.5"), ("empty", ""), ("a blank", " 5"),
            ("NaN", "NaN"), ("beyond 32 bits", "2147483648"), ("thousands of digits", "9" * 5000),
        )
    ),
    card_pod("task priority: a sign", BOUND, card_name="A", task__priority="+7", check=priority(7)),
    card_pod("task priority: negative", BOUND, card_name="A", task__priority="-5", check=priority(-5)),
    *(
        card_pod(f"preemptable: {id}", BOUND, card_name="A", preemptable=text, check=preemptable(value=False))
        for id, text in (("a word", "perhaps"), ("empty", ""), ("two", "2"), ("a control character", "\x00"))
    ),
    card_pod("task spec: huge", BOUND, card_name="A", task__spec="x" * 5000),
    pod("unknown annotations", BOUND, annotations={"": "", "x" * 999: "y" * 99_999, "volcano.sh/": "{"}),
    pod("group: with a slash", UNSEEN,
        WarningEvent("Pod", "bad", "PodGroupNotFound", "PodGroup <default/other/group> does not exist"),
        group="other/group"),
]  # fmt: skip

# --- quantities -----------------------------------------------------------------------------------------------------


def amount(id: str, path: str, text: str, **spec: Any) -> Case:
    """An amount that cannot be read: the pod is set aside."""
    return pod(id, UNSEEN, invalid("Pod", "bad", f"{path}: {text}"), **spec)


def container(side: str, resource: str, value: Any, **more: Any) -> list[dict[str, Any]]:
    """Containers of which one requests such an amount."""
    return [{"name": "c", "resources": {side: {resource: value}}, **more}]


NEGATIVE, NO_UNIT = "'-5' is negative", f"'lots' is not a quantity: {NO_NUMBER}"
TOO_MUCH = (
    "Queue <q> has insufficient CPU quota: requested <70368744177664>, total would be <70368744177664>, "
    "but capability is <256000>"
)


def huge(id: str, value: Any) -> Case:
    """A request that no cluster can meet: read as the largest amount there is, and refused with numbers.

    Changed figures alone are written at intervals, of which the first has not passed.
    """
    return pod(f"cpu: {id}", TOO_MUCH, *refused("InsufficientCPUQuota", TOO_MUCH), requests={"cpu": value})


QUANTITIES = [
    *(
        amount(f"cpu: {id}", "spec.containers[0].resources.requests[cpu]", text, requests={"cpu": value})
        for id, value, text in BAD_QUANTITIES
    ),
    *(
        amount(f"device: {id}", f"spec.containers[0].resources.requests[{GPU}]", text, card="A", requests={GPU: value})
        for id, value, text in BAD_QUANTITIES[::5]
    ),
    amount("a limit", "spec.containers[0].resources.limits[memory]", NEGATIVE, limits={"memory": "-5"}),
    amount("an unknown resource", "spec.containers[0].resources.requests[x.y/z]", NO_UNIT, requests={"x.y/z": "lots"}),
    amount("the second container", "spec.containers[1].resources.requests[cpu]", NO_UNIT,
           containers=[{"name": "a"}, *container("requests", "cpu", "lots")]),
    amount("an init container", "spec.initContainers[0].resources.requests[memory]", NEGATIVE,
           initContainers=container("requests", "memory", "-5")),
    amount("the limit of an init container", "spec.initContainers[0].resources.limits[cpu]", NO_UNIT,
           initContainers=container("limits", "cpu", "lots")),
    amount("a sidecar", "spec.initContainers[0].resources.requests[cpu]", NO_UNIT,
           initContainers=container("requests", "cpu", "lots", restartPolicy="Always")),
    amount("overhead", "spec.overhead[cpu]", NO_UNIT, overhead={"cpu": "lots"}),
    amount("the pod's own request", "spec.resources.requests[cpu]", NO_UNIT, resources={"requests": {"cpu": "lots"}}),
    amount("the pod's own limit", "spec.resources.limits[memory]", NEGATIVE, resources={"limits": {"memory": "-5"}}),
    huge("a huge exponent", "1e999999999"),
    huge("a hundred thousand digits", "9" * 100_000),
    huge("a number beyond 64 bits", BIG),
    pod("cpu: next to nothing", BOUND, requests={"cpu": "1e-999999999"}),
    pod("cpu: without digits before the point", BOUND, requests={"cpu": ".5", "memory": "5."}),
    pod("a resource that is none", BOUND, requests={"cpu": "1", "cups": "lots", "count/pods": "?"}),
    pod("a resource with a huge name", f"0/2 nodes are unavailable: 2 Insufficient x.y/{'z' * 5000}.",
        requests={"x.y/" + "z" * 5000: 1}),
    pod("no containers", BOUND, containers=[]),
    pod("a container with nothing in it", BOUND, containers=[{}], initContainers=[{}]),
    pod("an init container with an odd restart policy", BOUND,
        initContainers=container("requests", "cpu", "1", restartPolicy="Sometimes")),
]  # fmt: skip

# --- selectors ------------------------------------------------------------------------------------------------------

MISMATCH = "0/2 nodes are unavailable: 2 node(s) didn't match Pod's node affinity/selector."
#: Whatever ends: no node matches, so that nothing is reserved.
NOWHERE = refused(
    "CanNeverStart",
    "can never start: needs 1 pod, and the nodes that match their node selector and affinity have space for 0; "
    "nothing is reserved for it",
)
APART = "0/2 nodes are unavailable: 2 node(s) didn't match pod affinity rules."
SKEWED = "0/2 nodes are unavailable: 2 node(s) didn't match pod topology spread constraints."
UNLABELLED = SKEWED.replace(".", " (missing required label).")
UNKNOWN_OPERATOR = "unknown operator 'Gt'; expected In, NotIn, Exists, DoesNotExist"


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    """One expression of a selector."""
    return {"key": key, "operator": operator, "values": list(values)}


def node_affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    """Required node affinity."""
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def nowhere(id: str, *expressions: dict[str, Any], field: str = "matchExpressions") -> Case:
    """An expression that no API server takes matches nothing."""
    return pod(f"node affinity: {id}", MISMATCH, *NOWHERE, affinity=node_affinity({field: list(expressions)}))


def preferring(id: str, weight: int, operator: str = "Exists") -> Case:
    """A preferred term: it never keeps the pod from a node."""
    term = {"weight": weight, "preference": {"matchExpressions": [expression(HOST, operator)]}}
    return pod(f"preferred node affinity: {id}", BOUND, affinity={"nodeAffinity": {PREFERRED: [term] * 3}})


def pod_affinity(side: str, term: dict[str, Any]) -> dict[str, Any]:
    """Required pod (anti-)affinity."""
    return {side: {REQUIRED: [term]}}


def unreadable(id: str, problem: str, **term: Any) -> list[Case]:
    """A pod selector that cannot be read, on both sides."""
    message = f"plugin InterPodAffinity pre-predicates failed parsing pod: {problem}"
    return [
        pod(f"{side}: {id}", message, affinity=pod_affinity(side, {"topologyKey": HOST, **term}))
        for side in ("podAffinity", "podAntiAffinity")
    ]


def attracted(side: str, weight: int) -> Case:
    """A preferred pod term to pods like itself."""
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"a": "b"}}}
    affinity = {side: {PREFERRED: [{"weight": weight, "podAffinityTerm": term}]}}
    return pod(f"preferred {side}: weight {weight}", BOUND, affinity=affinity, labels={"a": "b"})


def spread(id: str, bad: str, **constraint: Any) -> Case:
    """A spread constraint over the nodes, for pods like this one."""
    whole = {
        "topologyKey": HOST,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"a": "b"}},
        **constraint,
    }
    return pod(f"spread: {id}", bad, topologySpreadConstraints=[whole, whole], labels={"a": "b"})


BAD_OPERATOR = {"matchExpressions": [expression("a", "Gt", "1")]}

SELECTORS = [
    nowhere("unknown operator", expression(HOST, "Equals", "good")),
    nowhere("In nothing", expression(HOST, "In")),
    nowhere("NotIn nothing", expression(HOST, "NotIn")),
    nowhere("Exists with a value", expression(HOST, "Exists", "good")),
    nowhere("Gt a word", expression(f"{GPU}.memory", "Gt", "x")),
    nowhere("Gt two values", expression(f"{GPU}.memory", "Gt", "1", "2")),
    nowhere("Gt beyond 64 bits", expression(f"{GPU}.memory", "Gt", "-" + "9" * 40)),
    nowhere("empty key", expression("", "Exists")),
    nowhere("unknown field", expression("metadata.uid", "Exists"), field="matchFields"),
    nowhere("two values for a field", expression("metadata.name", "In", "good", "plain"), field="matchFields"),
    pod("node affinity: no terms", MISMATCH, *NOWHERE, affinity=node_affinity()),
    pod("node affinity: empty term", MISMATCH, *NOWHERE, affinity=node_affinity({})),
    pod("node affinity: a bad term beside a good one", BOUND, affinity=node_affinity(
        {"matchExpressions": [expression(HOST, "Equals", "x")]}, {"matchExpressions": [expression(HOST, "Exists")]})),
    pod("node selector: keys that cannot be", MISMATCH, *NOWHERE, nodeSelector={"": "", "ключ": "\x00"}),
    *(preferring(f"weight {weight}", weight) for weight in (0, -5, 101, 2**63, BIG)),
    preferring("unknown operator", 1, "Like"),
    *unreadable("unknown operator", f"matchExpressions[0]: {UNKNOWN_OPERATOR}", labelSelector=BAD_OPERATOR),
    *unreadable("In nothing", "matchExpressions[0]: operator In needs at least one value",
                labelSelector={"matchExpressions": [expression("a", "In")]}),
    *unreadable("key with a blank",
                "matchLabels[a b]: label key 'a b' is not a name of 1 to 63 letters, digits, '-', '_' and '.'",
                labelSelector={"matchLabels": {"a b": "c"}}),
    *unreadable("namespace selector without a key", "matchExpressions[0]: empty label key", labelSelector={},
                namespaceSelector={"matchExpressions": [expression("", "Exists")]}),
    pod("podAffinity: no topology key", APART,
        affinity=pod_affinity("podAffinity", {"labelSelector": {"matchLabels": {"a": "b"}}})),
    pod("podAffinity: no selector", APART, affinity=pod_affinity("podAffinity", {"topologyKey": HOST})),
    pod("podAntiAffinity: no selector", BOUND, affinity=pod_affinity("podAntiAffinity", {"topologyKey": HOST})),
    *(attracted(side, weight) for side in ("podAffinity", "podAntiAffinity") for weight in (-1, BIG)),
    spread("unknown operator",
           f"plugin PodTopologySpread pre-predicates failed matchExpressions[0]: {UNKNOWN_OPERATOR}",
           labelSelector=BAD_OPERATOR),
    spread("unknown operator, soft", BOUND, labelSelector=BAD_OPERATOR, whenUnsatisfiable="ScheduleAnyway"),
    spread("skew 0", SKEWED, maxSkew=0),
    spread("skew beyond 64 bits", BOUND, maxSkew=BIG),
    spread("negative domains", BOUND, minDomains=-1),
    spread("no topology key", UNLABELLED, topologyKey=""),
    spread("unknown policies", BOUND, nodeAffinityPolicy="Maybe", nodeTaintsPolicy="No"),
    spread("neither hard nor soft", BOUND, whenUnsatisfiable="Perhaps"),
]  # fmt: skip

# --- the rest of a pod ----------------------------------------------------------------------------------------------


def port(id: str, **port: Any) -> Case:
    """A host port written twice."""
    containers = [{"ports": [port, port], "resources": {"requests": {"cpu": "1"}}}]
    return pod(f"host port: {id}", BOUND, containers=containers, hostNetwork=True)


def owners(h: Harness) -> None:
    """A pod with a PriorityClass that does not exist, and a default class beyond every bound."""
    h.priority_class("default", BIG, global_default=True)
    h.priority_class("other-default", -BIG, global_default=True)
    h.group("bad", queue="q", phase="Pending", priority_class="no such class")
    h.pod("bad", group="bad", priorityClassName="no such class", owner_kind="\x00")


def gated(world: World) -> bool:
    return world.h.task("bad").gated


REST = [
    *(
        pod(f"toleration: {id}", BOUND, tolerations=[toleration])
        for id, toleration in (
            ("unknown operator", {"key": "a", "operator": "Like"}),
            ("unknown effect", {"key": "a", "operator": "Exists", "effect": "Never"}),
            ("empty", {}),
            ("Exists with a value", {"key": "a", "operator": "Exists", "value": "b"}),
            ("negative seconds", {"operator": "Exists", "tolerationSeconds": -5}),
        )
    ),
    port("beyond all ports", hostPort=99_999_999),
    port("negative", hostPort=-1, containerPort=-1),
    port("unknown protocol", hostPort=80, protocol="ABC"),
    pod("priority beyond 64 bits", BOUND, priority=BIG),
    pod("unknown preemption policy", BOUND, preemptionPolicy="Sometimes"),
    Case("priority classes that cannot be", owners, bad=BOUND),
    pod("a volume of no kind", BOUND, volumes=[{}]),
    pod("a claim without a name", 'plugin VolumeBinding pre-predicates failed persistentvolumeclaim "" not found',
        volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": ""}}]),
    pod("a gate without a name", UNSEEN, schedulingGates=[{}], check=gated),
    pod("unknown phase", UNSEEN, phase="Runing"),
    pod("a node that does not exist", BOUND,
        WarningEvent("PodGroup", "bad", "NodeNotReady", "Pod bad is on node nowhere, which is missing"),
        node="nowhere"),
    pod("labels that cannot be", BOUND, labels={"": "", "ключ": "\x00", "a" * 5000: "b" * 5000}),
    pod("a number at the end of its name", BOUND, labels={"volcano.sh/task-index": "\u0663"}),
]  # fmt: skip

CASES = [case._replace(id=f"pod: {case.id}") for case in (*CARDS, *ANNOTATIONS, *QUANTITIES, *SELECTORS, *REST)]
