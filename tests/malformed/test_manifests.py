"""Manifests and timelines that cannot be simulated: exit status 2, nothing on standard output, and what to mend."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from capcard_sched.cli.main import run
from tests.malformed.world import BIG, MANIFESTS, NO_NUMBER

VOLCANO = "scheduling.volcano.sh/v1beta1"
BATCH = "batch.volcano.sh/v1alpha1"
SCENARIO = "apiVersion: simulation.capcard-sched.io/v1alpha1\nkind: Scenario\nmetadata: {name: s}\n"
CONTAINERS = "containers: [{name: c}]"
TEMPLATE = f"template: {{spec: {{{CONTAINERS}}}}}"
LETTERS = 'lower-case letters, digits, "-" and ".", starting and ending with a letter or digit'
DURATION = "a duration such as 30s, 1h30m, 500ms or 2d"
OPERATION = "{at: DURATION, create: OBJECT}, {at: .., delete: OBJECT} or {at: .., patch: OBJECT}"


class Case(NamedTuple):
    """Documents and all their messages, without `error: FILE: ` before each line."""

    id: str
    text: str
    problems: tuple[str, ...]


def document(api: str, kind: str, name: str, rest: str, *problems: str, id: str = "") -> Case:
    """One object; `problems` begins after its name."""
    where = f"document 1: {kind} {name}: "
    text = f"apiVersion: {api}\nkind: {kind}\nmetadata: {{name: {name}}}\n{rest}\n"
    return Case(f"{kind}: {id or rest}"[:90], text, tuple(where + line for line in problems))


def pod(spec: str, *problems: str) -> Case:
    return document("v1", "Pod", "a", f"spec: {{{CONTAINERS}, {spec}}}", *problems, id=spec)


def container(fields: str, *problems: str) -> Case:
    return document("v1", "Pod", "a", f"spec: {{containers: [{{name: c}}, {{{fields}}}]}}", *problems, id=fields)


def meta(fields: str, problems: str, name: str = "a") -> Case:
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{{fields}}}\nspec: {{{CONTAINERS}}}\n"
    return Case(f"metadata: {fields}"[:90], text, (f"document 1: Pod {name}: {problems}",))


def node(rest: str, *problems: str) -> Case:
    return document("v1", "Node", "n", rest, *problems)


def queue(rest: str, *problems: str) -> Case:
    return document(VOLCANO, "Queue", "q", rest, *problems)


def group(rest: str, *problems: str) -> Case:
    return document(VOLCANO, "PodGroup", "g", rest, *problems)


def job(spec: str, *problems: str) -> Case:
    return document(BATCH, "Job", "j", f"spec: {{{spec}}}", *problems, id=spec)


def workload(kind: str, spec: str, *problems: str) -> Case:
    return document("apps/v1", kind, "w", f"spec: {{{TEMPLATE}, {spec}}}", *problems, id=spec)


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NODE_TERMS = f"spec.affinity.nodeAffinity.{REQUIRED}"
POD_TERM = f"spec.affinity.podAntiAffinity.{REQUIRED}[0]"


def affinity(side: str, rule: str, value: str, *problems: str) -> Case:
    return pod(f"affinity: {{{side}: {{{rule}: {value}}}}}", *problems)


OBJECTS = [
    # wrong types in a pod
    document("v1", "Pod", "a", "spec: []", "spec: expected a mapping, got a list"),
    document("v1", "Pod", "a", "spec:", "spec.containers: is required: a pod has at least one container"),
    document("v1", "Pod", "a", "spec: {containers: [x]}", 'spec.containers[0]: expected a mapping, got the string "x"'),
    document("v1", "Pod", "a", "spec: {containers: [null]}", "spec.containers[0]: expected a mapping, got null"),
    document("v1", "Pod", "a", f"spec: {{{CONTAINERS}}}\nstatus: []", "status: expected a mapping, got a list"),
    document("v1", "Pod", "a", f"spec: {{{CONTAINERS}}}\nstatus: {{conditions: x}}",
             'status.conditions: expected a list, got the string "x"'),
    pod("priority: high", 'spec.priority: expected an integer, got the string "high"'),
    pod("priority: 1.5", "spec.priority: expected an integer, got the number 1.5"),
    pod(f"priority: {BIG}", f"spec.priority: must be at most 2147483647, got {BIG}"),
    pod("nodeName: 5", "spec.nodeName: expected a string, got the number 5"),
    pod("nodeSelector: {a: 1}", "spec.nodeSelector.a: expected a string, got the number 1"),
    pod("hostNetwork: maybe", 'spec.hostNetwork: expected true or false, got the string "maybe"'),
    pod("schedulingGates: x", 'spec.schedulingGates: expected a list, got the string "x"'),
    pod("volumes: [x]", 'spec.volumes[0]: expected a mapping, got the string "x"'),
    pod("terminationGracePeriodSeconds: -5", "spec.terminationGracePeriodSeconds: must be at least 0, got -5"),
    pod("restartPolicy: Sometimes",
        'spec.restartPolicy: expected one of Always, OnFailure, Never, got the string "Sometimes"'),
    # amounts in a pod
    container("resources: []", "spec.containers[1].resources: expected a mapping, got a list"),
    container("resources: {requests: [cpu]}", "spec.containers[1].resources.requests: expected a mapping, got a list"),
    container("resources: {requests: {cpu: [1]}}",
              "spec.containers[1].resources.requests.cpu: expected a quantity such as 500m, 2 or 16Gi, got a list"),
    container("resources: {limits: {x.y/z: '1e999999999'}}",
              "spec.containers[1].resources.limits[\"x.y/z\"]: '1e999999999' is not a quantity: exponent beyond 400"),
    pod("initContainers: x", 'spec.initContainers: expected a list, got the string "x"'),
    pod("initContainers: [{resources: {limits: {memory: -5}}}]",
        "spec.initContainers[0].resources.limits.memory: must not be negative, got the number -5"),
    pod("overhead: {cpu: x}", f"spec.overhead.cpu: 'x' is not a quantity: {NO_NUMBER}"),
    pod("resources: {requests: {cpu: x}}", f"spec.resources.requests.cpu: 'x' is not a quantity: {NO_NUMBER}"),
    # node selection
    pod("tolerations: x", 'spec.tolerations: expected a list, got the string "x"'),
    pod("tolerations: [{key: a, operator: Like}, {key: b, effect: Never}]",
        'spec.tolerations[0].operator: expected one of Exists, Equal, Lt, Gt, got the string "Like"',
        'spec.tolerations[1].effect: expected one of NoSchedule, PreferNoSchedule, NoExecute, got the string "Never"'),
    pod("affinity: []", "spec.affinity: expected a mapping, got a list"),
    affinity("nodeAffinity", REQUIRED, "{nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Equals}]}]}",
             f"{NODE_TERMS}.nodeSelectorTerms[0].matchExpressions[0].operator: "
             'expected one of In, NotIn, Exists, DoesNotExist, Gt, Lt, got the string "Equals"'),
    affinity("nodeAffinity", REQUIRED,
             "{nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In, values: [1]}]}]}",
             f"{NODE_TERMS}.nodeSelectorTerms[0].matchExpressions[0].values[0]: expected a string, got the number 1"),
    affinity("nodeAffinity", REQUIRED, "{}", f"{NODE_TERMS}: nodeSelectorTerms is required"),
    affinity("nodeAffinity", PREFERRED, "[{weight: 0, preference: {}}]",
             f"spec.affinity.nodeAffinity.{PREFERRED}[0].weight: must be at least 1, got 0"),
    affinity("podAffinity", PREFERRED, f"[{{weight: {BIG}, podAffinityTerm: {{topologyKey: a}}}}]",
             f"spec.affinity.podAffinity.{PREFERRED}[0].weight: must be at most 100, got {BIG}"),
    affinity("podAffinity", PREFERRED, "[{weight: 1, podAffinityTerm: {}}]",
             f"spec.affinity.podAffinity.{PREFERRED}[0].podAffinityTerm: topologyKey is required"),
    affinity("podAntiAffinity", REQUIRED, "[{labelSelector: {}}]", f"{POD_TERM}: topologyKey is required"),
    affinity("podAntiAffinity", REQUIRED,
             "[{topologyKey: a, labelSelector: {matchExpressions: [{key: a, operator: Gt, values: ['1']}]}}]",
             f"{POD_TERM}.labelSelector.matchExpressions[0].operator: "
             'expected one of In, NotIn, Exists, DoesNotExist, got the string "Gt"'),
    pod("topologySpreadConstraints: {a: b}", "spec.topologySpreadConstraints: expected a list, got a mapping"),
    pod("topologySpreadConstraints: [{topologyKey: a, maxSkew: 0, minDomains: -1, whenUnsatisfiable: Perhaps}]",
        "spec.topologySpreadConstraints[0].whenUnsatisfiable: "
        'expected one of DoNotSchedule, ScheduleAnyway, got the string "Perhaps"',
        "spec.topologySpreadConstraints[0].maxSkew: must be at least 1, got 0",
        "spec.topologySpreadConstraints[0].minDomains: must be at least 1, got -1"),
    pod("topologySpreadConstraints: [{maxSkew: 1}]", "spec.topologySpreadConstraints[0]: topologyKey is required"),
    container("ports: [{hostPort: http}]",
              'spec.containers[1].ports[0].hostPort: expected an integer, got the string "http"'),
    container("ports: [{hostPort: 99999}, {containerPort: -1}]",
              "spec.containers[1].ports[0].hostPort: must be at most 65535, got 99999",
              "spec.containers[1].ports[1].containerPort: must be at least 0, got -1"),
    # metadata
    meta("generateName: a-", "metadata.name: is required", "(no name)"),
    meta("name: Ab", f'metadata.name: the string "Ab" is not a valid name: use {LETTERS}', "Ab"),
    meta("name: a, namespace: b_c", f'metadata.namespace: the string "b_c" is not a valid name: use {LETTERS}',
         "b_c/a"),
    meta("name: a, uid: 5", "metadata.uid: expected a string, got the number 5"),
    meta("name: a, labels: [b]", "metadata.labels: expected a mapping, got a list"),
    meta("name: a, labels: {b: 5}", "metadata.labels.b: expected a string, got the number 5: put it in quotes"),
    meta("name: a, annotations: {volcano.sh/preemptable: false}",
         'metadata.annotations["volcano.sh/preemptable"]: expected a string, got false: put it in quotes'),
    meta("name: a, ownerReferences: [{kind: 5}]",
         "metadata.ownerReferences[0].kind: expected a string, got the number 5"),
    meta("name: a, creationTimestamp: yesterday",
         "metadata.creationTimestamp: 'yesterday' is not a timestamp such as 2026-01-01T00:00:00Z"),
    meta("name: a, deletionTimestamp: 2026-02-30T00:00:00Z",
         "metadata.deletionTimestamp: '2026-02-30T00:00:00Z' is not a timestamp: no such date or time"),
    # nodes
    node("spec: {taints: {a: b}}", "spec.taints: expected a list, got a mapping"),
    node("spec: {unschedulable: 'yes'}", 'spec.unschedulable: expected true or false, got the string "yes"'),
    node("status: {allocatable: [cpu]}", "status.allocatable: expected a mapping, got a list"),
    node("status: {capacity: {cpu: true}}",
         "status.capacity.cpu: expected a quantity such as 500m, 2 or 16Gi, got true"),
    node("status: {allocatable: {nvidia.com/gpu: eight}, capacity: {pods: -1}}",
         f"status.allocatable[\"nvidia.com/gpu\"]: 'eight' is not a quantity: {NO_NUMBER}",
         "status.capacity.pods: must not be negative, got the number -1"),
    node(f"status: {{images: [{{names: [i], sizeBytes: {BIG}}}]}}",
         f"status.images[0].sizeBytes: must be at most 9223372036854775807, got {BIG}"),
    # queues and PodGroups
    queue("spec: {guarantee: {resource: {cpu: x}}}",
          f"spec.guarantee.resource.cpu: 'x' is not a quantity: {NO_NUMBER}"),
    queue("spec: {deserved: {cpu: -1}}", "spec.deserved.cpu: must not be negative, got the number -1"),
    queue("spec: {reclaimable: sure}", 'spec.reclaimable: expected true or false, got the string "sure"'),
    queue("spec: {parent: 5}", "spec.parent: expected a string, got the number 5"),
    queue("spec: {weight: 70000}", "spec.weight: must be at most 65535, got 70000"),
    queue(f"spec: {{priority: {BIG}}}", f"spec.priority: must be at most 2147483647, got {BIG}"),
    queue("status: {allocated: {cpu: x}}", f"status.allocated.cpu: 'x' is not a quantity: {NO_NUMBER}"),
    group("spec: {minTaskMember: [a]}", "spec.minTaskMember: expected a mapping, got a list"),
    group("spec: {minTaskMember: {a: -1}, minMember: -1}", "spec.minMember: must be at least 0, got -1",
          "spec.minTaskMember.a: must be at least 0, got -1"),
    group(f"spec: {{minMember: {BIG}}}", f"spec.minMember: must be at most 2147483647, got {BIG}"),
    group("spec: {minResources: {cpu: x}}", f"spec.minResources.cpu: 'x' is not a quantity: {NO_NUMBER}"),
    group("spec: {queue: 5}", "spec.queue: expected a string, got the number 5"),
    group("status: {phase: Waiting}",
          'status.phase: expected one of Pending, Inqueue, Running, Unknown, Completed, got the string "Waiting"'),
    group("status: {conditions: [x]}", 'status.conditions[0]: expected a mapping, got the string "x"'),
    document("scheduling.volcano.sh/v1beta2", "PodGroup", "g", "",
             f'apiVersion: expected {VOLCANO} for kind PodGroup, got the string "scheduling.volcano.sh/v1beta2"'),
    # workloads
    job("policies: x, tasks: []", 'spec.policies: expected a list, got the string "x"'),
    job(f"policies: [{{event: Boom, action: AbortJob}}], tasks: [{{{TEMPLATE}}}]",
        "spec.policies[0].event: expected one of *, PodPending, PodFailed, PodEvicted, TaskCompleted, TaskFailed, "
        'Unknown, JobUpdated, got the string "Boom"'),
    job(f"tasks: [{{replicas: {BIG}, {TEMPLATE}}}]",
        f"spec.tasks[0].replicas: must be at most 2147483647, got {BIG}"),
    job(f"tasks: [{{replicas: 1, minAvailable: 2, {TEMPLATE}}}]",
        "spec.tasks[0].minAvailable: 'minAvailable' is greater than 'replicas' in task: default0, job: j; "
        "accepted: at most 1"),
    job(f"plugins: [env], tasks: [{{{TEMPLATE}}}]", "spec.plugins: expected a mapping, got a list"),
    job(f"tasks: [{{name: a, dependsOn: {{name: [z]}}, {TEMPLATE}}}]",
        'spec.tasks[0].dependsOn.name: there is no task "z"; accepted: a'),
    job("tasks: [{template: {spec: {containers: [{resources: {requests: {cpu: x}}}]}}}]",
        "spec.tasks[0].template.spec.containers[0].resources.requests.cpu: "
        f"'x' is not a quantity: {NO_NUMBER}"),
    workload("StatefulSet", "podManagementPolicy: Chaos",
             'spec.podManagementPolicy: expected one of OrderedReady, Parallel, got the string "Chaos"'),
    workload("Deployment", "strategy: {rollingUpdate: {maxSurge: lots}}",
             "spec.strategy.rollingUpdate.maxSurge: expected a number or a percentage such as 25%, "
             'got the string "lots"'),
    workload("Deployment", "replicas: 2.5", "spec.replicas: expected an integer, got the number 2.5"),
    # other kinds
    document("scheduling.k8s.io/v1", "PriorityClass", "p", "value: high",
             'value: expected an integer, got the string "high"'),
    document("scheduling.k8s.io/v1", "PriorityClass", "p", f"value: -{BIG}",
             f"value: must be at least -2147483648, got -{BIG}"),
    document("policy/v1", "PodDisruptionBudget", "b", "spec: {minAvailable: lots}",
             'spec.minAvailable: expected a number or a percentage such as 25%, got the string "lots"'),
    document("v1", "ResourceQuota", "r", "spec: {hard: {cpu: x}}",
             f"spec.hard.cpu: 'x' is not a quantity: {NO_NUMBER}"),
    document("v1", "ConfigMap", "m", "data: {a: 5}", "data.a: expected a string, got the number 5"),
]  # fmt: skip

NODE = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n---\n"
POD = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {{{CONTAINERS}}}\n---\n"
A_NODE = "{apiVersion: v1, kind: Node, metadata: {name: n}}"


def timeline(id: str, *operations: str, problems: tuple[str, ...], before: str = "") -> Case:
    """A Scenario, after another document or not."""
    text = f"{before}{SCENARIO}spec:\n  operations:\n" + "".join(f"  - {operation}\n" for operation in operations)
    number = 2 if before else 1
    return Case(f"timeline: {id}", text, tuple(f"document {number}: Scenario s: {line}" for line in problems))


def at(id: str, value: str, problems: str) -> Case:
    return timeline(
        f"at: {id}", f"{{at: {value}, create: {A_NODE}}}", problems=(f"spec.operations[0]: at: {problems}",)
    )


def create(id: str, value: str, problems: str) -> Case:
    return timeline(
        f"create: {id}", f"{{at: 1s, create: {value}}}", problems=(f"spec.operations[0].create: {problems}",)
    )


def patch(id: str, fields: str, problems: str, kind: str = "Node", name: str = "n") -> Case:
    body = f"{{apiVersion: v1, kind: {kind}, {fields}}}"
    return timeline(f"patch: {id}", f"{{at: 1s, patch: {body}}}", before=NODE if kind == "Node" else POD,
                    problems=(f"spec.operations[0].patch: {problems}",))  # fmt: skip


TIMELINES = [
    Case("Scenario: spec is a list", f"{SCENARIO}spec: []\n",
         ("document 1: Scenario: spec: expected a mapping, got a list",)),
    Case("Scenario: no operations", f"{SCENARIO}spec: {{operations: null}}\n",
         ("document 1: Scenario: spec.operations: is required",)),
    Case("Scenario: of another kind", f"{SCENARIO.replace('kind: Scenario', 'kind: Szenario')}spec: {{}}\n",
         (("document 1: Szenario: expected apiVersion simulation.capcard-sched.io/v1alpha1 with kind Scenario, "
          "got simulation.capcard-sched.io/v1alpha1 with kind Szenario"),)),
    Case("Scenario: in a List", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: "
         "simulation.capcard-sched.io/v1alpha1, kind: Scenario, spec: {operations: 5}}\n",
         ("document 1: items[0]: Scenario: spec.operations: expected a list, got the number 5",)),
    timeline("null", "null", problems=(f"spec.operations[0]: expected {OPERATION}, got null",)),
    timeline("two problems", "{at: x, create: {}}", "[]",
             problems=(f"spec.operations[0]: at: 'x' is not a duration: expected {DURATION}",
                   "spec.operations[0].create: apiVersion: is required",
                   f"spec.operations[1]: expected {OPERATION}, got a list")),
    at("true", "true", f"not a duration: expected {DURATION}"),
    at("null", "null", f"is required: {DURATION}"),
    at("with a blank", "'5 s'", f"'5 s' is not a duration: expected {DURATION}"),
    at("with an exponent", "1e9s", f"'1e9s' is not a duration: expected {DURATION}"),
    at("beyond a thousand years", "99999999999h",
       f"'99999999999h' is longer than a thousand years: expected {DURATION}"),
    at("negative", "-5s", f"'-5s' is negative: expected {DURATION}"),
    create("a list", "[]", "expected an object with apiVersion and kind, got a list"),
    create("no kind", "{apiVersion: v1}", "kind: is required"),
    create("a List", "{apiVersion: v1, kind: List, items: []}", "kind: List cannot be the object of an operation"),
    create("a Scenario", "{apiVersion: simulation.capcard-sched.io/v1alpha1, kind: Scenario}",
           "kind: Scenario cannot be the object of an operation"),
    create("a quantity", "{apiVersion: v1, kind: Node, metadata: {name: n}, status: {allocatable: {cpu: x}}}",
           f"Node n: status.allocatable.cpu: 'x' is not a quantity: {NO_NUMBER}"),
    timeline("create: twice", *[f"{{at: 1s, create: {A_NODE}}}"] * 2,
             problems=(
                 "spec.operations[1].create: create Node n: metadata.name: the object already exists at that time",)),
    timeline("delete: of nothing", f"{{at: 1s, delete: {A_NODE}}}",
             problems=(
                 "spec.operations[0].delete: delete Node n: metadata.name: the object does not exist at that time",)),
    timeline("delete: a missing pod", "{at: 1s, delete: {apiVersion: v1, kind: Pod, metadata: {name: a}}}",
             problems=("spec.operations[0].delete: delete Pod default/a: the object does not exist at 1s",)),
    timeline("delete: another version", f"{{at: 1s, delete: {A_NODE.replace('v1', 'v2')}}}",
             problems=(
                 'spec.operations[0].delete: Node n: apiVersion: expected v1 for kind Node, got the string "v2"',)),
    timeline("delete: metadata in a word", "{at: 1s, delete: {apiVersion: v1, kind: Node, metadata: n}}",
             problems=('spec.operations[0].delete: Node (no name): metadata: expected a mapping, got the string "n"',)),
    patch("a label", "metadata: {name: n, labels: {a: 5}}",
          "Node n: metadata.labels.a: expected a string, got the number 5: put it in quotes"),
    patch("a quantity", "metadata: {name: n}, status: {allocatable: {cpu: x}}",
          f"Node n: status.allocatable.cpu: 'x' is not a quantity: {NO_NUMBER}"),
    patch("a status", "metadata: {name: n}, status: x", 'Node n: status: expected a mapping, got the string "x"'),
    patch("what the API server sets", "metadata: {name: n, creationTimestamp: 2026-01-01T00:00:00Z}",
          "Node n: metadata.creationTimestamp: is set by the API server and cannot be patched"),
    # An error that exists only after the patch is found at its time, and nothing is printed all the same.
    patch("no container left", "metadata: {name: a}, spec: {containers: null}",
          "patch Pod default/a: spec.containers: is required: a pod has at least one container", "Pod"),
    patch("a request above its limit", "metadata: {name: a}, spec: {containers: "
          "[{name: c, resources: {requests: {cpu: 2}, limits: {cpu: 1}}}]}",
          "patch Pod default/a: spec.containers[0].resources.requests.cpu: 2 is more than its limit 1", "Pod"),
]  # fmt: skip

DOCUMENTS = [
    Case("a second document", f"{POD}5\n",
         ("document 2: expected an object with apiVersion and kind, got the number 5",)),
    Case("every document", "---\n".join(f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p{i}}}\n" for i in range(3)),
         tuple(f"document {i + 1}: Pod p{i}: spec.containers: is required: a pod has at least one container"
               for i in range(3))),
    Case("a List in a List", "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List, items: [5]}]\n",
         ("document 1: items[0].items[0]: expected an object with apiVersion and kind, got the number 5",)),
    Case("kind is a list", "apiVersion: v1\nkind: [Pod]\nmetadata: {name: a}\n",
         ("document 1: kind: expected a string, got a list",)),
    Case("a number that is infinite", "apiVersion: v1\nkind: Node\nmetadata: {name: n}\nstatus: {x: 1e999999999}\n",
         ("document 1: line 4, column 13: '1e999999999' is not a finite number",)),
    Case("a number of thousands of digits", f"apiVersion: v1\nkind: Node\nstatus: {{x: {'9' * 5000}}}\n",
         (f"document 1: line 3, column 13: '{'9' * 60}' is not an integer: too long",)),
    Case("a number of thousands of hexadecimal digits", f"apiVersion: v1\nkind: Node\nstatus: {{x: 0x{'f' * 5000}}}\n",
         (f"document 1: line 3, column 13: '0x{'f' * 58}' is not an integer: too long",)),
    Case("a key twice, deep inside", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {a: b, a: c}\n",
         ("document 1: line 4, column 14: the key 'a' occurs twice in one mapping",)),
    Case("JSON: half a surrogate pair", '{"apiVersion":"v1","kind":"Node","metadata":{"name":"\\ud800"}}',
         ("document 1: a string holds half of a surrogate pair, which is not valid Unicode",)),
    Case("JSON: half a surrogate pair as a key", '{"kind":"A"}{"\\uDFFF":"Node"}',
         ("document 2: a string holds half of a surrogate pair, which is not valid Unicode",)),
    Case("JSON: a number of thousands of digits", '{"kind":' + "9" * 5000 + "}",
         (f"document 1: '{'9' * 60}' is not an integer: too long",)),
    Case("JSON: a number that is infinite", '{"kind":"A"}\n{"kind":-1e999}',
         ("document 2: '-1e999' is not a finite number",)),
    Case("JSON: NaN", '{"kind":NaN}', ("document 1: NaN is not a JSON number",)),
    Case("JSON: a key twice", '{"kind":"A","kind":"B"}', ("document 1: the key 'kind' occurs twice in one object",)),
    Case("JSON: very deep", '{"a":' + "[" * 100_000, ("document 1: nested too deeply",)),
]  # fmt: skip

CASES = [*OBJECTS, *TIMELINES, *DOCUMENTS]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_input_that_cannot_be_simulated_is_refused_with_place_object_field_and_form(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(MANIFESTS)
    bad.write_text(case.text)
    assert run(["simulate", "-f", str(good), "-f", str(bad), "-o", "json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [f"error: {bad}: {line}" for line in case.problems]
