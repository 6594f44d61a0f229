"""Messages of the loader about input that cannot be simulated: place, object, field, accepted form."""

from __future__ import annotations

from pathlib import Path

import pytest

from capcard_sched.simulation.scenario import InputError
from capcard_sched.simulation.scenario_reader import load_scenario

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
JOB = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: j}\n"
DEPLOYMENT = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n"
QUEUE = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: q}\n"
POD_GROUP = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: g}\n"
HYPER_NODE = "apiVersion: topology.volcano.sh/v1alpha1\nkind: HyperNode\nmetadata: {name: h}\n"
BUDGET = "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: b}\n"
NODE = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n"
SCENARIO = "apiVersion: simulation.capcard-sched.io/v1alpha1\nkind: Scenario\n"
CONTAINERS = "containers: [{name: c}]"
SOFT_SPREAD = "{topologyKey: z, maxSkew: 1, minDomains: 2, whenUnsatisfiable: ScheduleAnyway}"


def operations(*lines: str) -> str:
    return SCENARIO + "spec:\n  operations:\n" + "".join(f"  - {line}\n" for line in lines)


def template(more: str = "") -> str:
    return f"template: {{spec: {{{CONTAINERS}}}{more}}}"


CASES = [
    # the document itself
    ("not YAML", "a: [1", "document 1: line 1, column 6: not valid YAML"),
    ("tab indentation", "a:\n\tb: 1", "document 1: line 2, column 1: not valid YAML"),
    ("duplicate key", POD + "spec: {}\nspec: {}", "document 1: line 5, column 1: the key 'spec' occurs twice"),
    ("list key", "? [a]\n: 1", "a key must be a plain word"),
    ("foreign tag", "a: !!python/object:os.system x", "the tag 'tag:yaml.org,2002:python/object:os.system' is not sup"),
    ("undefined alias", "a: *b", "not valid YAML: found undefined alias"),
    ("alias of itself", "a: &x [*x]", "an alias contains itself"),
    ("infinite number", QUEUE + "spec: {weight: .inf}", "is not a finite number"),
    ("a scalar", "just text", 'document 1: expected an object with apiVersion and kind, got the string "just text"'),
    ("a list", "[1]", "document 1: expected an object with apiVersion and kind, got a list"),
    ("second document", f"{POD}spec: {{{CONTAINERS}}}\n---\n3", "document 2: expected an object"),
    ("no kind", "apiVersion: v1\nmetadata: {name: a}", "document 1: kind: is required"),
    ("no apiVersion", "kind: Pod\nmetadata: {name: a}", "document 1: apiVersion: is required"),
    ("kind is a number", "apiVersion: v1\nkind: 5", "kind: expected a string, got the number 5"),
    ("wrong apiVersion", "apiVersion: extensions/v1beta1\nkind: Deployment\nmetadata: {name: d}",
     'Deployment d: apiVersion: expected apps/v1 for kind Deployment, got the string "extensions/v1beta1"'),
    ("items is a string", "apiVersion: v1\nkind: List\nitems: x", 'List: items: expected a list, got the string "x"'),
    ("bad item", "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Pod, metadata: {}}]",
     "document 1: items[0]: Pod (no name): metadata.name: is required"),
    # pods and budgets that an API server refuses
    ("protocol in small letters", POD + "spec: {containers: [{name: c, ports: [{hostPort: 80, protocol: tcp}]}]}",
     'spec.containers[0].ports[0].protocol: expected one of TCP, UDP, SCTP, got the string "tcp"'),
    ("gate without a name", POD + f"spec: {{schedulingGates: [{{}}], {CONTAINERS}}}",
     "spec.schedulingGates[0]: name is required"),
    ("domains of a soft constraint", POD + f"spec: {{{CONTAINERS}, topologySpreadConstraints: [{SOFT_SPREAD}]}}",
     "spec.topologySpreadConstraints[0]: minDomains is accepted only with whenUnsatisfiable: DoNotSchedule"),
    ("budget with two rules", BUDGET + "spec: {minAvailable: 1, maxUnavailable: 1}",
     "PodDisruptionBudget b: spec: has both minAvailable and maxUnavailable: accepted is one of them"),
    # metadata
    ("no metadata", "apiVersion: v1\nkind: Pod", "Pod (no name): metadata.name: is required"),
    ("metadata is a list", "apiVersion: v1\nkind: Pod\nmetadata: []", "metadata: expected a mapping, got a list"),
    ("name is a number", "apiVersion: v1\nkind: Node\nmetadata: {name: 12}", "metadata.name: expected a string"),
    ("impossible name", "apiVersion: v1\nkind: Node\nmetadata: {name: N_1}", 'the string "N_1" is not a valid name'),
    ("label is a number", NODE.replace("name: n", "name: n, labels: {nvidia.com/gpu.count: 8}"),
     'Node n: metadata.labels["nvidia.com/gpu.count"]: expected a string, got the number 8: put it in quotes'),
    ("annotation is a mapping", QUEUE.replace("name: q", "name: q, annotations: {volcano.sh/card.quota: {A: 1}}"),
     'Queue q: metadata.annotations["volcano.sh/card.quota"]: expected a string, got a mapping'),
    ("unknown kind without a name", "apiVersion: a.b/v1\nkind: Widget\nspec: {}", "metadata.name: is required"),
    # pods and templates
    ("containers is a string", POD + "spec: {containers: foo}",
     'Pod a: spec.containers: expected a list, got the string "foo"'),
    ("no containers", POD + "spec: {nodeName: n}", "spec.containers: is required: a pod has at least one container"),
    ("unreadable quantity", POD + "spec: {containers: [{name: c, resources: {requests: {nvidia.com/gpu: 2x}}}]}",
     "spec.containers[0].resources.requests[\"nvidia.com/gpu\"]: '2x' is not a quantity"),
    ("negative quantity", POD + "spec: {containers: [{name: c, resources: {requests: {cpu: -1}}}]}",
     "spec.containers[0].resources.requests.cpu: must not be negative, got the number -1"),
    ("quantity is a truth value", POD + "spec: {containers: [{name: c, resources: {limits: {cpu: true}}}]}",
     "spec.containers[0].resources.limits.cpu: expected a quantity such as 500m, 2 or 16Gi, got true"),
    ("request above its limit",
     POD + "spec: {containers: [{name: c, resources: {requests: {cpu: 2}, limits: {cpu: 1}}}]}",
     "spec.containers[0].resources.requests.cpu: 2 is more than its limit 1"),
    ("impossible phase", POD + f"spec: {{{CONTAINERS}}}\nstatus: {{phase: Runing}}",
     'status.phase: expected one of Pending, Running, Succeeded, Failed, Unknown, got the string "Runing"'),
    ("selector without operator",
     POD + f"spec: {{{CONTAINERS}, affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: "
     "{nodeSelectorTerms: [{matchExpressions: [{key: a}]}]}}}}", "matchExpressions[0].operator: is required"),
    ("unreadable duration", POD.replace("name: a", "name: a, annotations: {simulation.capcard-sched.io/duration: 5x}")
     + f"spec: {{{CONTAINERS}}}",
     'metadata.annotations["simulation.capcard-sched.io/duration"]: \'5x\' is not a duration: expected a duration suc'),
    ("impossible exit code",
     POD.replace("name: a", 'name: a, annotations: {simulation.capcard-sched.io/exit-code: "999"}')
     + f"spec: {{{CONTAINERS}}}", "expected a string with a number from 0 to 255"),
    ("negative grace", POD.replace("name: a", "name: a, annotations: {simulation.capcard-sched.io/grace: -5s}")
     + f"spec: {{{CONTAINERS}}}", "'-5s' is negative"),
    # other kinds
    ("replicas in words", DEPLOYMENT + f'spec: {{replicas: "3", {template()}}}',
     'Deployment d: spec.replicas: expected an integer, got the string "3"'),
    ("negative replicas", DEPLOYMENT + f"spec: {{replicas: -1, {template()}}}", "spec.replicas: must be at least 0"),
    ("no template", DEPLOYMENT + "spec: {replicas: 1}", "spec.template: is required"),
    ("empty template", DEPLOYMENT + "spec: {template: {spec: {nodeName: x}}}", "spec.template.spec.containers: is req"),
    ("selector misses", DEPLOYMENT + f"spec: {{selector: {{matchLabels: {{app: x}}}}, {template()}}}",
     "spec.selector.matchLabels.app: app=x is not a label of spec.template"),
    ("no tasks", JOB + "spec: {queue: q}", "Job j: spec.tasks: No task specified in job spec; accepted: a list"),
    ("same task twice", JOB + f"spec: {{tasks: [{{name: t, {template()}}}, {{name: t, {template()}}}]}}",
     "spec.tasks[1].name: duplicated task name t; accepted: distinct names"),
    ("minAvailable above replicas", JOB + f"spec: {{minAvailable: 3, tasks: [{{replicas: 2, {template()}}}]}}",
     "spec.minAvailable: job 'minAvailable' should not be greater than total replicas in tasks; accepted: at"),
    ("unknown action",
     JOB + f"spec: {{policies: [{{event: PodFailed, action: Restart}}], tasks: [{{{template()}}}]}}",
     "spec.policies[0].action: expected one of AbortJob, RestartJob, RestartTask, RestartPartition, RestartPod"),
    ("event and exit code",
     JOB + f"spec: {{policies: [{{event: PodFailed, exitCode: 3, action: AbortJob}}], tasks: [{{{template()}}}]}}",
     "spec.policies[0]: must not specify event and exitCode simultaneously"),
    ("circle of tasks",
     JOB + f"spec: {{tasks: [{{name: a, dependsOn: {{name: [b]}}, {template()}}}, "
     f"{{name: b, dependsOn: {{name: [a]}}, {template()}}}]}}",
     "spec.tasks: job has dependencies between tasks, but doesn't form a directed acyclic graph"),
    ("dequeueStrategy", QUEUE + "spec: {dequeueStrategy: lifo}",
     'Queue q: spec.dequeueStrategy: expected one of fifo, traverse, got the string "lifo"'),
    ("weight 0", QUEUE + "spec: {weight: 0}", "Queue q: spec.weight: must be at least 1, got 0"),
    ("unknown queue state", QUEUE + "status: {state: open}", "status.state: expected one of Open, Closed, Closing"),
    ("capability is a list", QUEUE + "spec: {capability: [cpu]}", "spec.capability: expected a mapping, got a list"),
    ("priority as text", QUEUE + 'spec: {priority: "high"}', "spec.priority: expected an integer, got the string"),
    ("unreadable allocatable", NODE + "status: {allocatable: {memory: 5 GB}}",
     "Node n: status.allocatable.memory: '5 GB' is not a quantity"),
    ("unknown taint effect", NODE + "spec: {taints: [{key: a, effect: Never}]}",
     "spec.taints[0].effect: expected one of NoSchedule, PreferNoSchedule, NoExecute"),
    ("class without value", "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: p}",
     "PriorityClass p: value: is required"),
    ("minMember as text",
     'apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: g}\nspec: {minMember: "2"}',
     "PodGroup g: spec.minMember: expected an integer"),
    ("unknown mode of topology",
     POD_GROUP + "spec: {networkTopology: {mode: firm}}",
     "PodGroup g: spec.networkTopology.mode: expected one of hard, soft, got the string"),
    ("tier of a job as text", JOB + "spec: {networkTopology: {highestTierAllowed: x}, tasks: []}",
     "spec.networkTopology.highestTierAllowed: expected an integer, got the string"),
    ("tier as text", HYPER_NODE + "spec: {tier: one}", "HyperNode h: spec.tier: expected an integer, got the string"),
    ("tier below 0", HYPER_NODE + "spec: {tier: -1}", "HyperNode h: spec.tier: must be at least 0, got -1"),
    ("unknown type of member", HYPER_NODE + "spec: {tier: 1, members: [{type: Rack}]}",
     "spec.members[0].type: expected one of Node, HyperNode, got the string"),
    # timelines
    ("scenario version", "apiVersion: simulation.capcard-sched.io/v1\nkind: Scenario\nspec: {operations: []}",
     "expected apiVersion simulation.capcard-sched.io/v1alpha1"),
    ("no spec", SCENARIO, "Scenario: spec: is required"),
    ("misspelt operations", SCENARIO + "spec: {operation: []}", "spec.operation: unknown field, expected operations"),
    ("operations is a mapping", SCENARIO + "spec: {operations: {}}", "spec.operations: expected a list, got a mapping"),
    ("operation is a word", operations("x"), "spec.operations[0]: expected {at: DURATION, create: OBJECT}"),
    ("no time", operations("{delete: {apiVersion: v1, kind: Pod, metadata: {name: a}}}"), "at: is required"),
    ("unreadable time", operations("{at: soon, delete: {apiVersion: v1, kind: Pod, metadata: {name: a}}}"),
     "spec.operations[0]: at: 'soon' is not a duration: expected a duration such as 30s, 1h30m"),
    ("negative time", operations("{at: -1s, delete: {apiVersion: v1, kind: Pod, metadata: {name: a}}}"), "is negative"),
    ("time is a list", operations("{at: [], delete: {apiVersion: v1, kind: Pod, metadata: {name: a}}}"), "got a list"),
    ("two verbs", operations("{at: 1s, create: {}, delete: {}}"),
     "spec.operations[0]: exactly one of create, delete, patch is needed, got create and delete"),
    ("no verb", operations("{at: 1s}"), "exactly one of create, delete, patch is needed, got none"),
    ("unknown verb", operations("{at: 1s, scale: {}}"), "spec.operations[0]: scale: unknown field"),
    ("create nothing", operations("{at: 1s, create: null}"), "spec.operations[0].create: expected an object"),
    ("create a bad object", operations("{at: 1s, create: {apiVersion: v1, kind: Pod, metadata: {name: a}}}"),
     "spec.operations[0].create: Pod a: spec.containers: is required"),
    ("delete without a name", operations("{at: 1s, delete: {apiVersion: v1, kind: Node}}"), "name: is required"),
    ("patch of a wrong type",
     QUEUE + "---\n" + operations(
         "{at: 1s, patch: {apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, metadata: {name: q}, "
         "spec: {weight: heavy}}}"), "spec.operations[0].patch: Queue q: spec.weight: expected an integer"),
    ("patch of a uid",
     QUEUE + "---\n" + operations(
         "{at: 1s, patch: {apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, metadata: {name: q, uid: x}}}"),
     "metadata.uid: is set by the API server and cannot be patched"),
    ("patch of nothing",
     operations("{at: 7s, patch: {apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {replicas: 1}}}"),
     "patch Deployment default/d: metadata.name: the object does not exist at that time"),
    ("delete before create", NODE.replace("name: n", "name: other") + "---\n" + operations(
        "{at: 9s, create: {apiVersion: v1, kind: Node, metadata: {name: n}}}",
        "{at: 8s, delete: {apiVersion: v1, kind: Node, metadata: {name: n}}}"),
     "delete Node n: metadata.name: the object does not exist at that time"),
    ("create what exists", NODE + "---\n" + operations(
        "{at: 9s, create: {apiVersion: v1, kind: Node, metadata: {name: n}}}"),
     "create Node n: metadata.name: the object already exists at that time"),
    ("defined twice", NODE + "---\n" + NODE, "document 2: Node n: metadata.name: already defined in"),
]  # fmt: skip


@pytest.mark.parametrize("text, message", [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_bad_input_is_refused_with_file_document_object_and_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "input.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_scenario([str(path)])
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}: document ")


FILES = [
    ("missing file", None, b"", "No such file or directory"),
    ("not UTF-8", "a.yaml", b"\xff\xfe\xfa", "not UTF-8 text (byte 0)"),
    ("broken JSON", "a.json", b'{"a": 1,}', "line 1, column 9"),
    ("duplicate JSON key", "a.json", b'{"a": 1, "a": 2}', "the key 'a' occurs twice in one object"),
    ("JSON with NaN", "a.json", b'{"a": NaN}', "NaN is not a JSON number"),
    ("control characters", "a.yaml", b"a: \x01", "document 1: not valid YAML"),
    ("deep YAML", "a.yaml", b"a: " + b"[" * 200_000, "document 1: nested too deeply"),
    ("deep YAML without brackets", "a.yaml", b"- " * 100_000, "document 1: nested too deeply"),
    (
        "aliases that explode",
        "a.yaml",
        b"a0: &a0 [x]\n"
        + b"".join(b"a%d: &a%d [*a%d%s]\n" % (n, n, n - 1, b", *a%d" % (n - 1) * 19) for n in range(1, 9)),
        "aliases expand to more than 1000000 values",
    ),
    ("deep nesting", "a.json", b'{"a":' + b"[" * 100_000, "nested too deeply"),
]


@pytest.mark.parametrize("name, content, message", [pytest.param(*case[1:], id=case[0]) for case in FILES])
def test_unreadable_files_are_named(tmp_path: Path, name: str | None, content: bytes, message: str) -> None:
    path = tmp_path / (name or "missing.yaml")
    if name:
        path.write_bytes(content)
    with pytest.raises(InputError, match=str(path)) as caught:
        load_scenario([str(path)])
    assert message in str(caught.value)


def test_a_folder_without_manifests_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("no manifest")
    with pytest.raises(InputError, match=r"no \.yaml, .yml, .json file in this folder"):
        load_scenario([str(tmp_path)])


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "input.yaml"
    path.write_text(QUEUE + "spec: {weight: 0, capability: {cpu: x}}\n---\n" + POD)
    with pytest.raises(InputError) as caught:
        load_scenario([str(path)])
    assert len(caught.value.problems) == 3


HARMLESS = [
    ("malformed card quota", QUEUE.replace("name: q", 'name: q, annotations: {volcano.sh/card.quota: "{broken"}')),
    ("empty card name", POD.replace("name: a", 'name: a, annotations: {volcano.sh/card.name: "A||"}')
     + f"spec: {{{CONTAINERS}}}"),
    ("odd card labels", NODE.replace("name: n", "name: n, labels: {nvidia.com/gpu.memory: many}")),
    ("null fields", POD.replace("name: a", "name: a, creationTimestamp: null, labels: null")
     + f"spec: {{{CONTAINERS}, nodeName: null}}\nstatus: {{}}"),
    ("a batch Job", "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec: {template: 5}"),
    ("an empty timeline", operations("{at: 0, delete: {apiVersion: v1, kind: Pod, metadata: {name: a}}}")),
]  # fmt: skip


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in HARMLESS])
def test_input_that_an_api_server_accepts_is_loaded(tmp_path: Path, text: str) -> None:
    path = tmp_path / "input.yaml"
    path.write_text(text)
    scenario = load_scenario([str(path)])
    assert scenario.entries or scenario.operations


def test_unknown_kinds_get_one_warning_each_and_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "input.yaml"
    path.write_text("---\n".join(f"apiVersion: v1\nkind: pod\nmetadata: {{name: w{i}}}\n" for i in range(3)))
    scenario = load_scenario([str(path)])
    assert len(scenario.entries) == 3
    assert len(scenario.warnings) == 1
    assert "kind pod (v1) is not known (did you mean Pod?)" in str(scenario.warnings[0])
