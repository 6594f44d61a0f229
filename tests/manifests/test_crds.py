"""The CRDs on a real API server: what they keep, what they fill in, what they refuse, what kubectl shows of them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.processes import output
from tests.manifests.documents import MANIFESTS, Manifest, by_key, parsed, read
from tests.manifests.every_field import (
    CARD_BUDGET,
    CARD_BUDGET_STATUS,
    COMMAND,
    HYPER_NODE,
    JOB,
    JOB_STATUS,
    POD_GROUP,
    QUEUE,
    QUEUE_STATUS,
)
from tests.scenarios.test_scenarios import fits

EXAMPLES: Final = {
    "Queue": QUEUE,
    "PodGroup": POD_GROUP,
    "Job": JOB,
    "Command": COMMAND,
    "HyperNode": HYPER_NODE,
    "CardBudget": CARD_BUDGET,
}
PLURALS: Final = {
    "Queue": "queues",
    "PodGroup": "podgroups",
    "Job": "jobs.batch.volcano.sh",
    "Command": "commands",
    "HyperNode": "hypernodes",
    "CardBudget": "cardbudgets",
}


def one(text: str) -> Manifest:
    (found,) = parsed(text)
    return found


async def create(cluster: Cluster, manifest: Manifest) -> Manifest:
    """Makes an object; a field that is not in the schema is an error."""
    path = await cluster.path(PLURALS[manifest["kind"]])
    return await cluster.request("POST", path, params={"fieldValidation": "Strict"}, body=manifest)


@pytest.mark.parametrize("kind", EXAMPLES)
async def test_every_field_is_known_and_kept_as_it_was_sent(cluster: Cluster, kind: str) -> None:
    sent = one(EXAMPLES[kind])
    kept = await create(cluster, sent)
    stored = {name: kept.get(name) for name in sent}
    stored["metadata"] = {name: kept["metadata"].get(name) for name in sent["metadata"]}
    assert stored == sent


@pytest.mark.parametrize(
    "kind, status", [("Queue", QUEUE_STATUS), ("Job", JOB_STATUS), ("CardBudget", CARD_BUDGET_STATUS)]
)
async def test_a_status_with_a_subresource_is_written_there_alone(cluster: Cluster, kind: str, status: str) -> None:
    manifest, expected = one(EXAMPLES[kind]), one(status)
    name = manifest["metadata"]["name"]
    made = await create(cluster, {**manifest, "status": expected})
    assert made.get("status", {}) in ({}, {"state": "Open"}), "dropped from a creation"
    ignored = await cluster.patch(PLURALS[kind], name, {"status": expected})
    assert ignored.get("status", {}) in ({}, {"state": "Open"}), "dropped from a patch of the object"
    await cluster.patch(PLURALS[kind], name, {"status": expected, "spec": {"queue": "x"}}, subresource="status")
    kept = await cluster.get(PLURALS[kind], name)
    assert kept["status"] == expected
    assert kept["spec"] == made["spec"], "a write to the status leaves the spec alone"


async def test_the_status_of_a_pod_group_is_part_of_the_object(cluster: Cluster) -> None:
    manifest = one(POD_GROUP)
    await create(cluster, manifest)
    with pytest.raises(RequestError) as absent:
        await cluster.get("podgroups", "train", subresource="status")
    assert absent.value.status == 404
    patched = await cluster.patch("podgroups", "train", {"status": {"phase": "Running", "running": 3}})
    assert patched["status"] == {**manifest["status"], "phase": "Running", "running": 3}
    assert patched["spec"] == manifest["spec"]


@pytest.mark.parametrize(
    "manifest, path, value",
    [
        ({"kind": "Queue", "spec": {}}, "spec.weight", 1),
        ({"kind": "Queue", "spec": {}}, "status.state", "Open"),
        ({"kind": "PodGroup", "spec": {}}, "spec.queue", "default"),
        ({"kind": "PodGroup", "spec": {"queue": ""}}, "spec.queue", ""),
        ({"kind": "PodGroup", "spec": {"networkTopology": {}}}, "spec.networkTopology.mode", "hard"),
        ({"kind": "PodGroup", "spec": {"subGroupPolicy": [{"name": "a"}]}}, "spec.subGroupPolicy.0.subGroupSize", 1),
        ({"kind": "PodGroup", "spec": {"subGroupPolicy": [{"name": "a"}]}}, "spec.subGroupPolicy.0.minSubGroups", 0),
        ({"kind": "Job", "spec": {}}, "spec.queue", "default"),
        ({"kind": "Job", "spec": {}}, "spec.maxRetry", 3),
        ({"kind": "Job", "spec": {"tasks": [{"replicas": 1}]}}, "spec.tasks.0.maxRetry", 3),
    ],
)
async def test_omitted_fields_get_their_defaults(cluster: Cluster, manifest: Manifest, path: str, value: Any) -> None:
    version = one(EXAMPLES[manifest["kind"]])["apiVersion"]
    kept: Any = await create(cluster, {"apiVersion": version, "metadata": {"name": "plain"}, **manifest})
    for part in path.split("."):
        kept = kept[int(part)] if part.isdigit() else kept[part]
    assert kept == value


#: In place of a value: the field is left out.
MISSING: Final = object()
TWO_TIERS: Final = {"mode": "hard", "highestTierAllowed": 1, "highestTierName": "rack"}
#: Kind, field and value, and what the error contains in place of the name of the field.
REFUSED: Final[list[tuple[Any, ...]]] = [
    ("Queue", "spec.weight", 0),
    ("Queue", "spec.weight", 65536),
    ("Queue", "spec.weight", "2"),
    ("Queue", "spec.weight", 1.5),
    ("Queue", "spec.priority", -1),
    ("Queue", "spec.reclaimable", "yes"),
    ("Queue", "spec.capability.cpu", "4 cores"),
    ("Queue", "spec.capability.cpu", 0.5),
    ("Queue", "spec.capability.memory", "4GB"),
    ("Queue", "spec.capability", ["cpu"]),
    ("Queue", "spec.priority", 2**31),
    ("Queue", "spec.guarantee.resource.cpu", True),
    ("Queue", "spec.dequeueStrategy", "lifo"),
    ("Queue", "spec.parent", "a" * 254),
    ("CardBudget", "spec.queue", ""),
    ("CardBudget", "spec.period", "year"),
    ("CardBudget", "spec.cards", {}),
    ("CardBudget", "spec.cards", {"A": "5000"}),
    ("CardBudget", "spec.cards", {"A": 5000}),
    ("CardBudget", "spec.cards", {"A|B": "1h"}),
    ("CardBudget", "spec.whenSpent", "kill"),
    ("HyperNode", "spec.tier", "1"),
    ("HyperNode", "spec.tier", -1),
    ("HyperNode", "spec.members[0].type", "Rack"),
    ("HyperNode", "spec.members[0].selector", {}),
    ("HyperNode", "spec.members[0].selector", {"exactMatch": {"name": "a"}, "regexMatch": {"pattern": "b"}}),
    ("HyperNode", "spec.members[0].selector.exactMatch.name", ""),
    ("PodGroup", "spec.minMember", "2"),
    ("PodGroup", "spec.minMember", -1),
    ("PodGroup", "spec.minMember", 2**31),
    ("PodGroup", "spec.minTaskMember.worker", "two"),
    ("PodGroup", "spec.minTaskMember", {f"t{index}": 1 for index in range(1025)}, "must have at most 1024 items"),
    ("PodGroup", "spec.minResources", {f"a/r{index}": 1 for index in range(1025)}, "must have at most 1024 items"),
    ("PodGroup", "spec.queue", "Research"),
    ("PodGroup", "spec.queue", "a b"),
    ("PodGroup", "spec.minResources.cpu", "many"),
    ("PodGroup", "spec.networkTopology.mode", "firm"),
    ("PodGroup", "spec.subGroupPolicy[0].subGroupSize", 0),
    ("PodGroup", "status.phase", 3),
    ("PodGroup", "status.running", "3"),
    ("PodGroup", "status.conditions[0].lastTransitionTime", "yesterday"),
    ("Job", "spec.minAvailable", -1),
    ("Job", "spec.minSuccess", 0),
    ("Job", "spec.maxRetry", -1),
    ("Job", "spec.ttlSecondsAfterFinished", -1),
    ("Job", "spec.plugins.svc", "--flag"),
    ("Job", "spec.volumes[0].mountPath", "/a:/b"),
    ("Job", "spec.tasks[0].replicas", "2"),
    ("Job", "spec.tasks[0].replicas", -1),
    ("Job", "spec.tasks[0].replicas", 2**31),
    ("Job", "spec.tasks[0].maxRetry", -2),
    ("Job", "spec.tasks[0].topologyPolicy", "loose"),
    ("Job", "spec.tasks[0].dependsOn.iteration", "some"),
    ("Job", "spec.tasks[0].template", "pod"),
    ("Command", "target", "research"),
    ("Command", "action", 1),
    ("Command", "target.uid", MISSING),
    ("Job", "spec.volumes[0].mountPath", MISSING),
    ("PodGroup", "spec.subGroupPolicy[0].name", MISSING),
    *((kind, f"{where}.networkTopology", TWO_TIERS, "highestTierAllowed and highestTierName exclude each other")
      for kind, where in (("PodGroup", "spec"), ("Job", "spec"), ("Job", "spec.tasks[0].partitionPolicy"))),
    ("Command", "weigth", 1, 'unknown field "weigth"'),
    ("Job", "spec.volumes[0].weigth", 1, 'unknown field "spec.volumes[0].weigth"'),
]  # fmt: skip


async def test_a_pod_group_has_up_to_1024_minimums(cluster: Cluster) -> None:
    manifest = one(EXAMPLES["PodGroup"])
    manifest["metadata"]["name"] = "many"
    manifest["spec"]["minTaskMember"] = {f"t{index}": 1 for index in range(1024)}
    manifest["spec"]["minResources"] = {f"a/r{index}": 1 for index in range(1024)}
    await create(cluster, manifest)


async def test_a_bad_value_is_refused_by_the_name_of_its_field(cluster: Cluster) -> None:
    wrong = []
    for number, (kind, field, value, *texts) in enumerate(REFUSED):
        manifest = one(EXAMPLES[kind])
        manifest["metadata"]["name"] = f"bad-{number}"
        *way, last = field.replace("[", ".").replace("]", "").split(".")
        place: Any = manifest
        for part in way:
            place = place[int(part)] if part.isdigit() else place[part]
        if value is MISSING:
            del place[last]
        else:
            place[last] = value
        try:
            await create(cluster, manifest)
        except RequestError as error:
            if error.status in {400, 422} and all(text in error.message for text in texts or [field]):
                continue
            wrong.append((kind, field, value, str(error)))
        else:
            wrong.append((kind, field, value, "accepted"))
    assert wrong == []


NEW: Final = {"list": [1, {"b": "2"}], "text": "x"}
#: Kind to the places at which objects of newer versions have fields that our schemas lack.
GREW: Final = {
    "Queue": ("spec", "status"),
    "PodGroup": (
        *("spec", "status", "spec.networkTopology", "spec.subGroupPolicy.0", "spec.subGroupPolicy.0.networkTopology"),
        *("spec.topologyAffinity", "spec.topologyAffinity.podGroupAntiAffinity"),
        "spec.topologyAffinity.podGroupAntiAffinity.required.0",
    ),
    "Job": (
        *("spec", "spec.networkTopology", "spec.tasks.0", "spec.tasks.0.partitionPolicy"),
        "spec.tasks.0.partitionPolicy.networkTopology",
    ),
    "CronJob": ("spec", "spec.jobTemplate", "spec.jobTemplate.spec", "spec.jobTemplate.spec.tasks.0"),
    "HyperNode": ("spec",),
    "Numatopology": ("spec",),
}
CRON_JOB: Final = """
apiVersion: batch.volcano.sh/v1alpha1
kind: CronJob
metadata: {name: nightly}
spec: {schedule: "@daily", jobTemplate: {spec: {tasks: [{name: w, replicas: 1}]}}}
"""
NUMATOPOLOGY: Final = """
apiVersion: nodeinfo.volcano.sh/v1alpha1
kind: Numatopology
metadata: {name: n1}
spec: {policies: {CPUManagerPolicy: static}}
"""
#: Queues and PodGroups of Volcano 1.16 name these.
OF_1_16: Final = {
    "Queue": {"allowedNamespaces": ["team-a"]},
    "PodGroup": {
        "queue": "namespace/training",
        "topologyAffinity": {
            "podGroupAntiAffinity": {
                "required": [{"podGroupSelector": {"matchLabels": {"a": "b"}}, "topologyTier": 1}],
                "preferred": [{"podGroupSelector": {}, "topologyTierName": "rack", "weight": 100}],
            },
        },
    },
}


def grown(kind: str) -> Manifest:
    """An object with a field `newer` at every place."""
    made = one({**EXAMPLES, "CronJob": CRON_JOB, "Numatopology": NUMATOPOLOGY}[kind])
    made["spec"] |= copy.deepcopy(OF_1_16.get(kind, {}))
    for place in GREW[kind]:
        _at(made, place)["newer"] = NEW
    return made


def _at(obj: Any, place: str) -> Any:
    for part in place.split("."):
        obj = obj[int(part)] if isinstance(obj, list) else obj.setdefault(part, {})
    return obj


@pytest.mark.parametrize("kind", GREW)
async def test_fields_of_newer_schemas_survive_the_writes_of_ours(cluster: Cluster, kind: str) -> None:
    sent = grown(kind)
    name, plural = sent["metadata"]["name"], {**PLURALS, "CronJob": "cronjobs.batch.volcano.sh"}.get(kind, kind)
    subresource = "status" if kind in ("Queue", "Job", "CronJob") else ""
    await cluster.create(sent)
    if kind == "Queue":
        await cluster.patch(plural, name, {"status": sent["status"]}, subresource="status")
    kept = []
    for write in ("create", "label", "annotate", "apply", "status"):
        if write == "label":
            await cluster.patch(plural, name, {"metadata": {"labels": {"a": "b"}}})
        elif write == "annotate":
            await cluster.patch(plural, name, {"metadata": {"annotations": {"a": "b"}}}, strategy="merge")
        elif write == "apply":
            plain = {each: sent[each] for each in ("apiVersion", "kind")}
            await cluster.apply({**plain, "metadata": {"name": name, "labels": {"c": "d"}}})
        elif write == "status" and kind not in ("HyperNode", "Numatopology"):
            state = {"Queue": {"state": "Closed"}, "PodGroup": {"phase": "Running"}, "CronJob": {}}
            await cluster.patch(plural, name, {"status": state.get(kind, {"version": 1})}, subresource=subresource)
        found = await cluster.get(plural, name)
        kept += [(write, place) for place in GREW[kind] if _at(found, place).get("newer") == NEW]
        assert fits(OF_1_16.get(kind, {}), found["spec"])
    assert kept == [
        (write, place) for write in ("create", "label", "annotate", "apply", "status") for place in GREW[kind]
    ]


QUANTITIES: Final = (
    *("0", "1", "100m", "1.5", "1.5Gi", ".5", "5.", "+1", "-1"),
    *("1e3", "1E3", "12e-3", "1Ki", "7E", "3n", "4u", "5k"),
)


async def test_every_spelling_of_a_quantity_is_accepted(cluster: Cluster) -> None:
    kept = []
    for number, text in enumerate(QUANTITIES):
        manifest = one(QUEUE)
        manifest["metadata"]["name"] = f"q-{number}"
        manifest["spec"]["capability"] = {"cpu": text}
        kept.append((await create(cluster, manifest))["spec"]["capability"]["cpu"])
    assert kept == [*QUANTITIES]


async def shown(cluster: Cluster, kubectl: Path, *words: str) -> list[list[str]]:
    """The table `kubectl get` prints: rows of cells; cells here hold no spaces."""
    where = ("--kubeconfig", cluster.control_plane.kubeconfig, "--namespace", cluster.namespace)
    return [line.split() for line in (await output(kubectl, *where, "get", *words)).splitlines()]


QUEUE_ROW: Final = ["research", "root", "Open"]
#: Kind, its names, columns and cells but the age; the further columns and cells of `-o wide`.
SHOWN: Final = [
    (
        "Queue", "queues queue q queue-v1beta1", "NAME PARENT STATE AGE",
        QUEUE_ROW, {"CARDS": '{"NVIDIA-H200":8}', "USED": '{"NVIDIA-H200":3}'},
    ),
    (
        "PodGroup", "podgroups podgroup pg podgroup-v1beta1", "NAME STATUS MINMEMBER RUNNINGS AGE",
        ["train", "Inqueue", "3", "1"], {"QUEUE": "research", "REASON": "NotEnoughResources"},
    ),
    (
        "Job", "jobs.batch.volcano.sh vcjob vj", "NAME STATUS MINAVAILABLE RUNNINGS AGE",
        ["train", "Running", "3", "2"], {"QUEUE": "research", "REASON": "Restarted"},
    ),
]  # fmt: skip


@pytest.mark.parametrize("kind, names, columns, cells, wide", SHOWN, ids=["Queue", "PodGroup", "Job"])
async def test_kubectl_shows_the_state_and_the_age(
    cluster: Cluster, kubectl: Path, kind: str, names: str, columns: str, cells: list[str], wide: dict[str, str]
) -> None:
    manifest = one(EXAMPLES[kind])
    if kind == "Queue":
        manifest["metadata"]["annotations"]["volcano.sh/card.quota"] = '{"NVIDIA-H200":8}'
        manifest["metadata"]["annotations"]["volcano.sh/card.allocated"] = '{"NVIDIA-H200":3}'
    if kind == "PodGroup":
        past = {"type": "Scheduled", "status": "False", "reason": "Past"}
        present = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources"}
        manifest.setdefault("status", {})["conditions"] = [past, present]
    await create(cluster, manifest)
    if kind == "Job":
        status = one(JOB_STATUS)
        status["state"]["reason"] = "Restarted"
        await cluster.patch(PLURALS[kind], "train", {"status": status}, subresource="status")
    for name in names.split():
        header, row = await shown(cluster, kubectl, name)
        assert header == columns.split()
        assert row[:-1] == cells
        assert row[-1].endswith("s")
    header, row = await shown(cluster, kubectl, name, "-o", "wide")
    assert dict(zip(header[-len(wide) :], row[-len(wide) :], strict=True)) == wide


async def test_the_api_server_has_nothing_against_a_schema(cluster: Cluster) -> None:
    for definition in await cluster.list("customresourcedefinitions"):
        conditions = {row["type"]: row for row in definition["status"]["conditions"]}
        assert conditions["Established"]["status"] == "True"
        assert conditions["NamesAccepted"]["status"] == "True"
        assert conditions.get("NonStructuralSchema", {"status": "False"})["status"] == "False", json.dumps(conditions)


async def test_fields_of_the_projects_examples_are_in_the_schemas(cluster: Cluster) -> None:
    folder = MANIFESTS.parent / "config" / "examples" / "demo"
    documents = [document for file in sorted(folder.glob("*.yaml")) for document in read(file)]
    ours = [
        copy.deepcopy(each) for each in documents if each.get("apiVersion", "").partition("/")[0].endswith("volcano.sh")
    ]
    assert {each["kind"] for each in ours} >= {"Queue", "Job"}
    for manifest in by_key(ours).values():
        manifest["metadata"]["namespace"] = cluster.namespace
        if manifest["kind"] == "Queue":
            del manifest["metadata"]["namespace"]
        await create(cluster, manifest)
