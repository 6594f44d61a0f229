"""The admission policies against tenants as tables: kinds that become pods, rules about them, further validations.

A rule holds for every kind that has what it is about: a CronJob and a Job for their pods. `render.py` writes the
policies to base/admission-tenants.yaml.
"""

from __future__ import annotations

import textwrap
from typing import Final, NamedTuple

from capcard_sched.model import annotations as keys
from capcard_sched.model.job import CRITICAL_CLASSES, SYSTEM_NAMESPACE

_WIDTH: Final = 120
#: Replaced in the chart by the scheduler names of the release.
_OURS: Final = "['capcard-sched']"
#: Everyone but the scheduler, the controllers, the garbage collector and kubelets; the chart has the users and groups.
_TENANT: Final = """\
!(request.userInfo.username in ['system:kube-controller-manager',
'system:serviceaccount:volcano-system:volcano-controllers',
'system:serviceaccount:volcano-system:volcano-scheduler']) &&
!(has(request.userInfo.groups) && request.userInfo.groups.exists(group, group in
['system:serviceaccounts:capcard-system', 'system:serviceaccounts:kube-system', 'system:nodes']))"""


class Kind(NamedTuple):
    """A kind that is a pod or a PodGroup, or becomes one. `{o}` is the object."""

    group: str
    version: str
    resource: str
    #: CEL list of its pods or pod templates.
    pods: str
    #: CEL list of its specs of a PodGroup: with a priority class and, unless it is a PodGroup, the name of a scheduler.
    groups: str


_TASKS: Final = ".?tasks.orValue([]).map(task, task.?template.orValue({{}}))"
KINDS: Final = (
    Kind("batch.volcano.sh", "v1alpha1", "jobs", "{o}.?spec" + _TASKS, "[{o}.?spec.orValue({{}})]"),
    Kind(
        "batch.volcano.sh",
        "v1alpha1",
        "cronjobs",
        "{o}.?spec.?jobTemplate.?spec" + _TASKS,
        "[{o}.?spec.?jobTemplate.?spec.orValue({{}})]",
    ),
    Kind("apps", "v1", "daemonsets", "[{o}.spec.template]", "[]"),
    Kind("", "v1", "pods", "[{o}]", "[{o}.spec]"),
    Kind("scheduling.volcano.sh", "v1beta1", "podgroups", "[]", "[{o}.?spec.orValue({{}})]"),
)


class Rule(NamedTuple):
    """No value of a kind is `bad`, unless it was there before the update."""

    name: str
    #: CEL of the values of one pod or pod template, "" for none.
    of_pod: str
    #: The same of one spec of a PodGroup.
    of_group: str
    #: CEL condition on `value`.
    bad: str
    #: CEL of the message.
    message: str
    #: CEL condition under which an object is exempt.
    exempt: str = ""


_CRITICAL: Final = ", ".join(f"'{name}'" for name in sorted(CRITICAL_CLASSES))
_CONTROLLED_BY_DAEMON_SET: Final = (
    "(request.resource.resource == 'pods' && request.userInfo.username in "
    "['system:serviceaccount:kube-system:daemon-set-controller', "
    "'system:kube-controller-manager'] && dyn(object).metadata.?ownerReferences.orValue([]).exists(owner, "
    "owner.kind == 'DaemonSet' && owner.apiVersion.startsWith('apps/') && owner.?controller.orValue(false)))"
)
_MIRROR: Final = (
    "(request.resource.resource == 'pods' && "
    "request.userInfo.?groups.orValue([]).exists(group, group == 'system:nodes') && "
    "dyn(object).metadata.?annotations[?'kubernetes.io/config.mirror'].hasValue())"
)
#: The policy `pods` checks bound pods.
_BOUND: Final = (
    "(request.resource.resource == 'pods' && oldObject != null && dyn(oldObject).spec.?nodeName.orValue('') != '')"
)
RULES: Final = (
    Rule(
        "priority",
        "pod.?spec.?priorityClassName.orValue('')",
        "spec.?priorityClassName.orValue('')",
        f"value in [{_CRITICAL}]",
        f"'priorityClassName ' + bad[0] + ' is reserved for the namespace {SYSTEM_NAMESPACE}'",
        exempt=f"request.namespace == '{SYSTEM_NAMESPACE}'",
    ),
    Rule(
        "node",
        "pod.?spec.?nodeName.orValue('')",
        "",
        "value != ''",
        "'spec.nodeName (' + bad[0] + ') of a pod of this scheduler is set by its binding; "
        "use a node selector or node affinity'",
        exempt=f"{_CONTROLLED_BY_DAEMON_SET} || {_MIRROR}",
    ),
    Rule(
        "queue",
        f"pod.?metadata.?annotations[?'{keys.BOUND_QUEUE}'].orValue('')",
        "",
        "value != ''",
        f"'annotation {keys.BOUND_QUEUE} is written by the scheduler with the binding; "
        f"name the queue in {keys.POD_QUEUE_NAME}'",
        exempt=_BOUND,
    ),
)


#: Policy to the resources of its kinds and the names of its rules. The constraints of `priority` stay those of former
#: versions: a server-side apply after a client-side one refuses others.
RULES_OF_POLICIES: Final = {
    "templates": (("jobs", "cronjobs", "daemonsets", "pods"), ("node", "queue", "priority")),
    "priority": (("podgroups", "jobs"), ("priority",)),
}


class Validation(NamedTuple):
    """One validation; `message` is text, or CEL if `computed`."""

    expression: str
    message: str
    computed: bool = False


_ANNOTATIONS: Final = "{o}.metadata.?annotations.orValue({{}})"
#: Of a ResourceClaimTemplate: kube-controller-manager copies them to its claims.
_COPIED: Final = "{o}.?spec.?metadata.?annotations.orValue({{}})"
_LABELS: Final = "{o}.metadata.?labels.orValue({{}})"
_CONTAINERS: Final = (
    "[{{'name': dyn(''), 'resources': dyn({o}).spec.?resources.orValue({{}})}}] + dyn({o}).spec.containers + "
    "dyn({o}).spec.?initContainers.orValue([])"
)
_CHANGED: Final = (
    "variables.{keys}.filter(key, variables.{now}[?key].orValue('') != variables.{former}[?key].orValue(''))"
)
_STATUS: Final = "oldObject != null ? dyn(oldObject).?status.?{field}.orValue({default}) : {default}"
_QUEUE: Final = "{o} != null ? dyn({o}).?spec.?queue.orValue('') : ''"


def _listed(names: frozenset[str]) -> str:
    return "[" + ", ".join(f"'{name}'" for name in sorted(names)) + "]"


_VARIABLES: Final = {
    "claims": (
        ("fixed", _listed(frozenset({keys.BOUND_QUEUE, keys.CARD_ASSIGNED}))),
        ("annotations", _ANNOTATIONS.format(o="object")),
        ("formerAnnotations", f"oldObject != null ? {_ANNOTATIONS.format(o='dyn(oldObject)')} : {{}}"),
        ("copied", _COPIED.format(o="dyn(object)")),
        ("formerCopied", f"oldObject != null ? {_COPIED.format(o='dyn(oldObject)')} : {{}}"),
        ("changed", _CHANGED.format(keys="fixed", now="annotations", former="formerAnnotations")),
        ("changedCopied", _CHANGED.format(keys="fixed", now="copied", former="formerCopied")),
    ),
    "pods": (
        ("fixedAnnotations", _listed(keys.BOUND_ANNOTATIONS)),
        ("fixedLabels", _listed(keys.BOUND_LABELS)),
        ("annotations", _ANNOTATIONS.format(o="object")),
        ("formerAnnotations", _ANNOTATIONS.format(o="oldObject")),
        ("labels", _LABELS.format(o="object")),
        ("formerLabels", _LABELS.format(o="oldObject")),
        (
            "changed",
            " + ".join(
                _CHANGED.format(keys=f"fixed{kind}", now=kind.lower(), former=f"former{kind}")
                for kind in ("Annotations", "Labels")
            ),
        ),
    ),
    "resize": (
        ("containers", _CONTAINERS.format(o="object")),
        ("formerContainers", _CONTAINERS.format(o="oldObject")),
    ),
    "podgroups": (
        ("phase", _STATUS.format(field="phase", default="''")),
        ("running", _STATUS.format(field="running", default="0")),
        ("formerQueue", _QUEUE.format(o="oldObject")),
        ("queue", _QUEUE.format(o="object")),
    ),
}
_VALIDATIONS: Final = {
    "claims": (
        Validation(
            "variables.changed + variables.changedCopied == []",
            "'the scheduler writes queue and cards of ResourceClaims: ' + "
            "(variables.changed + variables.changedCopied).join(', ') + ' cannot be set or changed'",
            computed=True,
        ),
    ),
    "pods": (
        Validation(
            "variables.changed == []",
            "'queue, group and card annotations of a bound pod cannot be changed, nor what its binding fixed "
            "besides: ' + variables.changed.join(', ')",
            computed=True,
        ),
    ),
    "resize": (
        Validation(
            f"namespaceObject.metadata.?annotations[?'{keys.ALLOW_RESIZE}'].orValue('') == 'true' || "
            "variables.containers.all(container, variables.formerContainers.exists(former, "
            "former.name == container.name && container.?resources.?requests.orValue({}).all(name, "
            "!quantity(container.resources.requests[name]).isGreaterThan("
            "quantity(former.?resources.?requests[?name].orValue('0'))))))",
            "requests of a bound pod can be raised only in a namespace with the annotation "
            f'{keys.ALLOW_RESIZE}: "true"',
        ),
    ),
    "podgroups": (
        Validation(
            "request.operation != 'UPDATE' || variables.phase in ['', 'Pending'] || "
            "variables.formerQueue == variables.queue",
            "spec.queue of a PodGroup that has left Pending cannot be changed",
        ),
        Validation(
            "request.operation != 'DELETE' || variables.phase == 'Completed' || variables.running == 0",
            "a PodGroup with running pods cannot be deleted; delete its pods first",
        ),
        Validation(
            "request.operation != 'UPDATE' || (has(object.status) == has(oldObject.status) && "
            "(!has(object.status) || object.status == oldObject.status))",
            "the status of a PodGroup is written by the scheduler and the controllers only",
        ),
        Validation(
            "request.operation != 'CREATE' || dyn(object).?status.?phase.orValue('') in ['', 'Pending']",
            "a PodGroup is created in phase Pending",
        ),
    ),
}


def rules_of(kind: Kind) -> set[str]:
    return {name for kinds, rules in RULES_OF_POLICIES.values() if kind.resource in kinds for name in rules}


def _by_kind(kinds: list[Kind], expressions: list[str]) -> str:
    """The expression of the kind of a request."""
    *others, last = zip(kinds, expressions, strict=True)
    chain = [f"request.resource.resource == '{kind.resource}' ? ({text}) : " for kind, text in others]
    return f"{''.join(chain)}({last[1]})"


def _ours(kind: Kind, obj: str) -> str:
    """Whether the object names our scheduler, or none; a PodGroup never does."""
    pods, groups = kind.pods.format(o=f"dyn({obj})"), kind.groups.format(o=f"dyn({obj})")
    name = "spec.?schedulerName.orValue('')"
    of_groups = f"{groups}.exists(spec, {name} == '' || {name} in {_OURS})"
    of_pods = f"{pods}.exists(pod, pod.?spec.?schedulerName.orValue('') in {_OURS})"
    if kind.resource == "podgroups":
        return "true"
    return of_pods if kind.resource in ("pods", "daemonsets") else f"{of_groups} || {of_pods}"


def _variables_of(kinds: list[Kind], rules: list[Rule]) -> list[tuple[str, str]]:
    """The pods and specs of an object, those it had before the update, and the bad values that are new."""
    # While it named another scheduler, it was not checked.
    ours = f"oldObject != null && ({_by_kind(kinds, [_ours(kind, 'oldObject') for kind in kinds])})"
    found = [("formerlyOurs", ours)]
    for name, former, texts in (
        ("pods", "formerPods", [kind.pods for kind in kinds]),
        ("groups", "formerGroups", [kind.groups for kind in kinds]),
    ):
        if name == "groups" and not any(rule.of_group for rule in rules):
            continue
        found.append((name, _by_kind(kinds, [text.format(o="dyn(object)") for text in texts])))
        before = _by_kind(kinds, [text.format(o="dyn(oldObject)") for text in texts])
        found.append((former, f"!variables.formerlyOurs ? [] : {before}"))
    for rule in rules:
        lists = [("pods", "formerPods", f"pod, {rule.of_pod}")]
        lists += [("groups", "formerGroups", f"spec, {rule.of_group}")] if rule.of_group else []
        now = " + ".join(f"variables.{name}.map({value})" for name, _, value in lists)
        before = " + ".join(f"variables.{name}.map({value})" for _, name, value in lists)
        found.append((f"{rule.name}Bad", f"({now}).filter(value, {rule.bad} && !(value in ({before})))"))
    return found


class Policy(NamedTuple):
    """A ValidatingAdmissionPolicy."""

    name: str
    #: Group, version, operations and resources.
    rows: list[tuple[str, str, str, str]]
    #: Further conditions: name and CEL.
    conditions: list[tuple[str, str]]
    variables: list[tuple[str, str]]
    validations: list[Validation]
    #: CEL condition under which the rule has no exempt users.
    for_all: str = ""


def _of_rules(name: str) -> Policy:
    """The policy of rules about kinds that become pods or PodGroups."""
    resources, names = RULES_OF_POLICIES[name]
    rules = [rule for rule in RULES if rule.name in names]
    kinds = [kind for resource in resources for kind in KINDS if kind.resource == resource]
    rows = [(kind.group, kind.version, "CREATE, UPDATE", kind.resource) for kind in kinds]
    rows += [("", "v1", "UPDATE", "pods/status")] if "pods" in resources else []
    validations = []
    for rule in rules:
        bad = f"variables.{rule.name}Bad"
        condition = " || ".join([f"{bad} == []", *([rule.exempt] if rule.exempt else [])])
        validations.append(Validation(condition, rule.message.replace("bad[0]", f"{bad}[0]"), computed=True))
    ours = _by_kind(kinds, [_ours(kind, "object") for kind in kinds])
    # Controllers create pods of templates that tenants write.
    for_all = "request.operation == 'CREATE' && request.resource.resource == 'pods'" if "pods" in resources else ""
    return Policy(name, rows, [("ours", ours)], _variables_of(kinds, rules), validations, for_all)


def all_policies() -> list[Policy]:
    """The policies in the order of the manifest."""
    bound = [
        ("ours", f"object.spec.?schedulerName.orValue('') in {_OURS}"),
        ("bound", "oldObject.spec.?nodeName.orValue('') != ''"),
    ]
    rows = {
        "pods": ("", "v1", "UPDATE", "pods, pods/status"),
        "resize": ("", "v1", "UPDATE", "pods/resize"),
        "podgroups": ("scheduling.volcano.sh", "v1beta1", "CREATE, UPDATE, DELETE", "podgroups, podgroups/status"),
    }
    own = [
        Policy(name, [row], [] if name == "podgroups" else bound, [*_VARIABLES[name]], [*_VALIDATIONS[name]])
        for name, row in rows.items()
    ]
    key = f"metadata.?annotations[?'{keys.BOUND_QUEUE}'].hasValue()"
    one = "{o}." + key + " || {o}.?spec.?" + key
    former = one.format(o="oldObject")
    recorded = f"{one.format(o='object')} || (request.operation == 'UPDATE' && ({former}))"
    row = "resource.k8s.io", "v1", "CREATE, UPDATE", "resourceclaims, resourceclaimtemplates"
    claims = Policy("claims", [row], [("ours", recorded)], [*_VARIABLES["claims"]], [*_VALIDATIONS["claims"]])
    return [*own, claims, *map(_of_rules, RULES_OF_POLICIES)]


def _folded(text: str, indent: int) -> str:
    """A CEL expression as a folded scalar."""
    pad = " " * indent
    lines = textwrap.wrap(text, _WIDTH - indent, break_long_words=False, break_on_hyphens=False)
    return ">-\n" + "\n".join(pad + line for line in lines)


def rendered(policy: Policy) -> str:
    """A policy and its binding as YAML."""
    name = f"capcard-sched-{policy.name}"
    tenant = textwrap.indent(_TENANT, "      ")
    if policy.for_all:
        tenant = f"      ({policy.for_all}) || (\n{tenant})"
    lines = [
        "apiVersion: admissionregistration.k8s.io/v1",
        "kind: ValidatingAdmissionPolicy",
        "metadata:",
        f"  name: {name}",
        "  labels:",
        "    app: capcard-sched",
        "spec:",
        "  failurePolicy: Fail",
        "  matchConstraints: # with its defaults: a server-side apply compares it as a whole",
        "    matchPolicy: Equivalent",
        "    namespaceSelector: {}",
        "    objectSelector: {}",
        "    resourceRules:",
    ]
    for group, version, operations, resources in policy.rows:
        lines += [
            f"    - apiGroups: [{group}]" if group else '    - apiGroups: [""]',
            f"      apiVersions: [{version}]",
            f"      operations: [{operations}]",
            f"      resources: [{resources}]",
            '      scope: "*"',
        ]
    lines.append("  matchConditions:")
    for each, text in policy.conditions:
        lines += [f"  - name: {each}", f"    expression: {_folded(text, 6)}"]
    lines += [
        "  - name: tenant # everyone but the scheduler, the controllers, the garbage collector and kubelets",
        f"    expression: >-\n{tenant}",
        "  variables:",
    ]
    for each, text in policy.variables:
        lines += [f"  - name: {each}", f"    expression: {_folded(text, 6)}"]
    lines.append("  validations:")
    for validation in policy.validations:
        field = "messageExpression" if validation.computed else "message"
        lines += [f"  - expression: {_folded(validation.expression, 6)}"]
        lines += [f"    {field}: {_folded(validation.message, 6)}", "    reason: Forbidden"]
    lines += [
        "---",
        "apiVersion: admissionregistration.k8s.io/v1",
        "kind: ValidatingAdmissionPolicyBinding",
        "metadata:",
        f"  name: {name}",
        "  labels:",
        "    app: capcard-sched",
        "spec:",
        f"  policyName: {name}",
        "  validationActions: [Deny]",
    ]
    return "\n".join(lines) + "\n"


def tenant_policies() -> str:
    """The text of base/admission-tenants.yaml below its first line."""
    head = "# Quotas hold against the tenants that they limit, also while no scheduler runs. Needs Kubernetes 1.30.\n"
    return head + "---\n".join(map(rendered, all_policies()))
