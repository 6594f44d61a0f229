"""Each printed fix of random clusters, typed into a simulation with controllers: the job starts, and starts again.

The lines are parsed from the text and become operations of a timeline. The simulated API server, admission and
controllers execute them; no code of the trials takes part.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from capcard_sched.admission.pods import AdmissionConfig
from capcard_sched.admission.review import AdmissionRequest, GroupVersionKind
from capcard_sched.admission.webhooks import WEBHOOKS, WebhookContext, decide
from capcard_sched.cli.sources.inputs import LoadedCluster
from capcard_sched.cli.sources.load import load_cluster
from capcard_sched.cli.sources.source import Source
from capcard_sched.controllers.objects import Key
from capcard_sched.insight.diagnosis.explain import explain, find
from capcard_sched.insight.fixes.commands import FixStep, parse, set_at
from capcard_sched.insight.fixes.execution import cluster_view
from capcard_sched.model.job import Job
from capcard_sched.model.kinds import BATCH_API, BATCH_JOB, BUS_API, KIND_BY_NAME, SCHEDULING_API
from capcard_sched.model.trials import FixSearch, SuggestedFix
from capcard_sched.simulation.store import merged
from tests.scenarios.notation import manifests

H200, A100 = "NVIDIA-H200", "NVIDIA-A100-80GB"
#: Seconds of virtual time: of the explanation, of the fix, of what is created anew, of the rollout, and of the end.
EXPLAINED, FIXED, CREATED, ROLLED_OUT, END = 60, 65, 130, 300, 600
_TAINT = "spec={taints: [{key: dedicated, value: llm, effect: NoSchedule}]}"
_SUBJECTS = {
    "vcjob": "job subject queue={queue} scheduler=volcano min={pods} + w*{pods} gpu={gpu} cpu=1 {card}",
    "deployment": "deployment subject*{pods} queue={queue} gpu={gpu} cpu=1 {card}",
    "pod": "pod subject queue={queue} gpu={gpu} cpu=1 {card}",
}


class World(NamedTuple):
    """A random cluster, and the workload that is explained."""

    nodes: list[tuple[str, int, str]]
    #: The annotation of queue q; capability cpu.
    quota: tuple[str, str]
    cpu: int | None
    others: list[tuple[str, int, int]]
    kind: str
    queue: str
    pods: int
    gpu: int
    card: tuple[str, str]

    def objects(self) -> list[dict[str, Any]]:
        """The manifests."""
        lines = [
            f"node n{index} {count}*{card} cpu=16 {state}" for index, (card, count, state) in enumerate(self.nodes)
        ]
        for number, (kind, pods, gpu) in enumerate(self.others):
            text = _SUBJECTS[kind].replace("subject", f"other{number}")
            lines.append(text.format(queue="q", pods=pods, gpu=gpu, card=f"card={H200}"))
        found = manifests("; ".join(lines))
        key, quota = self.quota
        cap = {"capability": {"cpu": str(self.cpu)}} if self.cpu is not None else {}
        queue = {"metadata": {"name": "q", "annotations": {key: quota}}, "spec": {"weight": 1, **cap}}
        found.append({"apiVersion": SCHEDULING_API, "kind": "Queue", **queue})
        (subject,) = manifests(_SUBJECTS[self.kind].format(queue=self.queue, pods=self.pods, gpu=self.gpu, card=""))
        key, card = self.card
        for template in _templates(subject):
            template.setdefault("metadata", {}).setdefault("annotations", {})[key] = card
        return [*found, subject]


def _templates(obj: dict[str, Any]) -> list[dict[str, Any]]:
    if obj["kind"] == "Pod":
        return [obj]
    tasks = obj["spec"].get("tasks")
    return [task["template"] for task in tasks] if tasks is not None else [obj["spec"]["template"]]


WORLDS = st.builds(
    World,
    nodes=st.lists(
        st.tuples(
            st.sampled_from([H200, H200, A100]),
            st.integers(2, 4),
            st.sampled_from(["", "", "spec={unschedulable: true}", _TAINT]),
        ),
        min_size=1,
        max_size=3,
    ),
    quota=st.one_of(
        st.tuples(
            st.just("volcano.sh/card.quota"),
            st.builds(lambda h, a: json.dumps({H200: h, A100: a}), st.sampled_from([0, 2, 4, 16]), st.integers(0, 4)),
        ),
        st.sampled_from(
            [
                ("volcano.sh/card-quota", json.dumps({H200: 8})),
                ("volcano.sh/card.quota", json.dumps({H200: "8"})),
                ("volcano.sh/card.quota", json.dumps({"NVIDIA-H2OO": 8, A100: 2})),
                ("volcano.sh/card.quota", "{'NVIDIA-H200': 8}"),
            ]
        ),
    ),
    cpu=st.sampled_from([None, None, 2, 40]),
    others=st.lists(
        st.tuples(st.sampled_from(["vcjob", "deployment", "pod"]), st.integers(1, 2), st.integers(1, 2)), max_size=3
    ),
    kind=st.sampled_from(["vcjob", "deployment", "pod"]),
    queue=st.sampled_from(["q", "q", "Q"]),
    pods=st.integers(1, 3),
    gpu=st.integers(1, 4),
    card=st.sampled_from(
        [
            ("volcano.sh/card.name", H200),
            ("volcano.sh/card.name", H200),
            ("volcano.sh/card.name", A100),
            ("volcano.sh/card.name", "NVIDIA-H-200"),
            ("volcano.sh/card-name", H200),
        ]
    ),
)


def loaded(objects: list[dict[str, Any]], until: int, operations: list[dict[str, Any]] = []) -> LoadedCluster:  # noqa: B006
    """The end of a simulation."""
    scenario = {"apiVersion": "simulation.capcard-sched.io/v1alpha1", "kind": "Scenario", "metadata": {"name": "typed"}}
    documents = [*objects, {**scenario, "spec": {"operations": operations}}] if operations else objects
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.yaml"
        file.write_text("\n---\n".join(map(json.dumps, documents)))
        return load_cluster(Source(file=(str(file),), until=f"{until}s"), read_only=bool(operations))


def subject_of(cluster: LoadedCluster) -> Job:
    """The job that is explained; of two revisions of a Deployment the newer."""
    jobs = [
        job
        for job in cluster.core.snapshot().state.jobs.values()
        if any("subject" in t.name for t in job.tasks.values())
    ]
    return max(jobs, key=lambda job: job.created)


def fixes_of(cluster: LoadedCluster) -> FixSearch | None:
    """The fixes as explained, by name."""
    subject = find(cluster.core, cluster.objects, "default", "subject")
    assert subject is not None
    return explain(cluster.core, cluster.objects, subject, cluster.now, fix=True).fixes


def operations_of(fix: SuggestedFix, cluster: LoadedCluster, kind: str) -> list[dict[str, Any]]:
    """The lines of a fix as operations; admission allows each."""
    key = Key({"vcjob": "Job", "deployment": "Deployment"}.get(kind, "Pod"), "default", "subject")
    steps = [step for line in fix.lines for command in line.split(" && ") for step in parse(command, key)]
    present: dict[Key, dict[str, Any]] = {}
    found = [
        {"at": f"{FIXED}s", verb: body}
        for step in steps
        if step.verb not in {"recreate", "actions", "plugin"}
        for verb, body in [operation_of(step, cluster, present)]
    ]
    changes = [step.value for step in steps if step.verb == "recreate"]
    if changes:
        old = cluster.objects.get(*key)
        assert old is not None
        new = json.loads(json.dumps({field: old[field] for field in ("apiVersion", "kind", "spec")}))
        new["metadata"] = {
            name: old["metadata"][name] for name in ("name", "namespace", "annotations") if name in old["metadata"]
        }
        for path, value in changes:
            set_at(new, path, value)
        admit(new, None, cluster)
        head = {"apiVersion": old["apiVersion"], "kind": old["kind"], "metadata": {"name": "subject"}}
        found += [{"at": f"{FIXED}s", "delete": head}, {"at": f"{CREATED}s", "create": new}]
    return found


def operation_of(
    step: FixStep, cluster: LoadedCluster, present: dict[Key, dict[str, Any]]
) -> tuple[str, dict[str, Any]]:
    """One step that changes an object, as a client sends it. `present`: objects that steps before it patched."""
    assert step.key is not None
    kind, namespace, name = step.key
    if kind == BATCH_JOB:
        raise AssertionError(step)
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    head = {"apiVersion": KIND_BY_NAME[kind].api_version, "kind": kind, "metadata": metadata}
    old = present.get(step.key) or cluster.objects.get(*step.key) or {}
    if step.verb in {"suspend", "open"}:
        version, action = (BATCH_API, "AbortJob") if step.verb == "suspend" else (SCHEDULING_API, "OpenQueue")
        target = {"apiVersion": version, "kind": kind, "name": name, "uid": old["metadata"]["uid"], "controller": True}
        command = {"name": f"typed-{name}", "namespace": namespace or "default"}
        return "create", {
            "apiVersion": BUS_API,
            "kind": "Command",
            "metadata": command,
            "action": action,
            "target": target,
        }
    if step.verb == "delete":
        return "delete", head
    if step.verb == "scale":
        assert step.value >= 0
        return "patch", {**head, "spec": {"replicas": step.value}}
    if step.verb == "uncordon":
        return "patch", {**head, "spec": {"unschedulable": False}}
    if step.verb == "untaint":
        kept = [one for one in old["spec"]["taints"] if not step.value.startswith(one["key"])]
        return "patch", {**head, "spec": {"taints": kept}}
    assert step.verb == "patch", step
    present[step.key] = merged(old, step.value)
    admit(present[step.key], old, cluster)
    return "patch", {**head, **step.value, "metadata": {**step.value.get("metadata", {}), **metadata}}


def admit(new: dict[str, Any], old: dict[str, Any] | None, cluster: LoadedCluster) -> None:
    """The webhooks allow an object; queues are those of the cluster before the fix, but for the one of the fix."""
    path = {"Queue": "/queues/validate", "Job": "/jobs/validate"}.get(new["kind"])
    if path is None:
        return
    context = WebhookContext(cluster_view(cluster.objects), AdmissionConfig(), ("capcard-sched", "volcano"))
    operation: Literal["CREATE", "UPDATE"] = "CREATE" if old is None else "UPDATE"
    kind = GroupVersionKind(kind=new["kind"])
    request = AdmissionRequest("u", kind, operation, new["metadata"]["name"], object=new, old_object=old)
    errors = decide(WEBHOOKS[path], request, context).errors
    # A Job may need what the same fix changes in its queue.
    assert not [error for error in errors if error.field != "spec.minAvailable"], errors


def starts(cluster: LoadedCluster, kind: str) -> bool:
    """Whether the job has its minimum, and its goal of a job that had it."""
    job = subject_of(cluster)
    return job.is_ready() and (kind != "deployment" or bool(job.ready_tasks))


def check(world: World) -> None:
    """All fixes of a cluster."""
    objects = world.objects()
    cluster = loaded(objects, EXPLAINED)
    found = fixes_of(cluster)
    event(f"fixes: {0 if found is None else len(found.fixes)}")
    for fix in found.fixes if found is not None else ():
        event("kinds: " + ", ".join(sorted({change.kind for change in fix.changes})))
        if any(change.kind in {"Action", "Plugin"} for change in fix.changes):
            continue
        text = "\n".join(fix.lines)
        assert "node.kubernetes.io/" not in text
        operations = operations_of(fix, cluster, world.kind)
        after = loaded(objects, ROLLED_OUT - 1, operations)
        assert starts(after, world.kind), f"{text}\n{world}"
        if world.kind == "deployment":
            again = itertools.chain(t for t in subject_of(after).tasks.values())
            deleted = [
                {"at": f"{ROLLED_OUT}s", "delete": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": task.name}}}
                for task in again
            ]
            assert starts(loaded(objects, END, [*operations, *deleted]), world.kind), f"again: {text}\n{world}"


#: A cluster takes seconds: none is made smaller.
_SLOW = settings(deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


@settings(_SLOW, max_examples=5)
@given(WORLDS)
def test_each_fix_starts_the_job_as_it_is_typed(world: World) -> None:
    check(world)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@settings(_SLOW, max_examples=60)
@given(WORLDS)
def test_each_fix_of_many_clusters_starts_the_job_as_it_is_typed(world: World) -> None:
    check(world)
