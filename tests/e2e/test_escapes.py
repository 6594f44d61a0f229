"""Verbs on a live cluster print no control character of objects, of the installed conf or of refusals of the server."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from cyclopts import App

from capcard_sched.cli.commands import app
from capcard_sched.cli.sources.source import INSTALLED_CONF
from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest, plain, queue
from tests.e2e.asking import LiveCommand
from tests.unit.cli.test_main_escapes import HOSTILE, OBJECTS, RAW, changed, variants

#: Programs that serve.
_SERVERS: Final = frozenset({"run", "controllers", "admission", "web", "cache"})
#: The last ones change what the others read. `FILE` is a new file.
VERBS: Final = (
    "job list", "job list -o wide", "job list -o json", "job list -o yaml", "job list -o name", "job get j",
    "job get j -o yaml", "queue list", "queue list -o yaml", "queue get q", "queue get q -o json", "pod list",
    "pod list -o wide", "pod list -o json", "node list", "node list -o wide", "node list -o json", "card list",
    "card list -o yaml", "explain g", "explain g -o json", "explain p --fix", "what-if --drain n1",
    "what-if --drain n1 -o json", "migrate check", "migrate check -o json",
    "snapshot -o FILE", "job run k", "job suspend j", "job resume j", "job delete j",
    "queue create k", "queue update q -w 3", "queue close q", "queue open q", "queue delete q",
)  # fmt: skip
#: The API server refuses writes of these kinds with a hostile text.
_POLICY: Final[Manifest] = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "hostile"},
    "spec": {
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": ["batch.volcano.sh", "bus.volcano.sh", "scheduling.volcano.sh"],
                    "apiVersions": ["*"],
                    "resources": ["jobs", "commands", "queues"],
                    "operations": ["CREATE", "UPDATE", "DELETE"],
                }
            ]
        },
        "validations": [{"expression": "false", "message": "refused \x1b[31m\x9b1m\u202e\u2028\x07"}],
    },
}


def _leaves(parent: App, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The verbs that have the flag --kubeconfig."""
    for name in parent:
        if name.startswith("-"):
            continue
        child = parent[name]
        if child.default_command is None:
            yield from _leaves(child, (*words, name))
        elif any("--kubeconfig" in argument.names for argument in child.assemble_argument_collection()):
            yield (*words, name)


def test_every_verb_of_live_clusters_has_a_row() -> None:
    rows = {tuple(row.split()) for row in VERBS}
    missing = [
        words
        for words in _leaves(app)
        if words[0] not in _SERVERS and not any(row[: len(words)] == words for row in rows)
    ]
    assert missing == []


async def _hostile(cluster: Cluster, manifest: Manifest) -> Manifest:
    """The object with a hostile text in every place where the API server accepts one."""
    found = copy.deepcopy(manifest)
    if "namespace" in found["metadata"]:
        found["metadata"]["namespace"] = cluster.namespace
    for path, what in list(variants(found)):
        if path in {("kind",), ("apiVersion",), ("metadata", "name"), ("metadata", "namespace")}:
            continue
        (candidate,) = changed([found], (0, *path), what)
        if await cluster.rejection(candidate) is None:
            found = candidate
    return found


async def _set_status(cluster: Cluster, kind: str, name: str, **status: Any) -> None:
    """Every field that the API server accepts."""
    for field, value in status.items():
        try:
            await cluster.patch(kind, name, {"status": {field: value}}, subresource="status")
        except RequestError as error:
            if error.status == 404:  # no subresource
                await cluster.patch(kind, name, {"status": {field: value}})
            elif error.status != 422:
                raise


@pytest.fixture
async def hostile(cluster: Cluster) -> dict[str, Manifest]:
    """Hostile objects by kind, their statuses, and a conf."""
    made = {each["kind"]: await cluster.create(await _hostile(cluster, each)) for each in OBJECTS}
    condition = {"type": "Unschedulable", "status": "True", "reason": HOSTILE, "message": HOSTILE}
    condition |= {"transitionID": "1", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    await _set_status(cluster, "podgroups", "g", phase=HOSTILE, conditions=[condition])
    state = {"phase": HOSTILE, "message": HOSTILE, "reason": HOSTILE}
    await _set_status(cluster, "jobs.batch.volcano.sh", "j", state=state, conditions=[{"status": HOSTILE}])
    await _set_status(cluster, "queues", "q", state=HOSTILE, reservation={"nodes": [HOSTILE]})
    await _set_status(cluster, "pods", "p", message=HOSTILE, reason=HOSTILE, nominatedNodeName=HOSTILE)
    ready = {"type": "Ready", "status": "False", "reason": HOSTILE, "message": HOSTILE}
    await _set_status(cluster, "nodes", "n1", conditions=[ready])
    namespace, _, name = INSTALLED_CONF.partition("/")
    await cluster.make_namespace(namespace)
    text = f'actions: "allocate"\ntiers: []\nunknown: {json.dumps(HOSTILE)}\n'
    await cluster.create(plain("ConfigMap", name, namespace=namespace, data={"scheduler.yaml": text}))
    return made


async def _check(run: LiveCommand, verb: str, folder: Path) -> str:
    """Run a verb; its output."""
    words = [str(folder / "file") if word == "FILE" else word for word in verb.split()]
    has_namespace = words[0] in {"job", "pod", "explain"}
    answer = await run(*words, *(("-n", run.namespace) if has_namespace else ()))
    for stream in (answer.out, answer.err):
        assert not [character for character in RAW if character in stream], (verb, stream)
        assert not [line for line in stream.splitlines() if line.startswith("error: forged")], (verb, stream)
    return answer.out + answer.err


async def test_no_verb_prints_control_characters_of_a_live_cluster(
    cluster: Cluster,
    control_plane: ControlPlane,
    hostile: dict[str, Manifest],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = LiveCommand(control_plane.kubeconfig_for("admin"), cluster.namespace, capsys)
    stored = json.dumps(hostile)
    assert stored.count("forged") >= 15, "the API server accepts texts"
    found = {verb: await _check(run, verb, tmp_path) for verb in VERBS if verb.split()[1:2] != ["delete"]}
    shown = [verb for verb, text in found.items() if r"\x1b" in text or r"\u001b" in text]
    assert len(shown) >= 10, "the texts are shown, escaped"

    await cluster.create(_POLICY)
    binding = {"policyName": "hostile", "validationActions": ["Deny"]}
    await cluster.create(
        plain("ValidatingAdmissionPolicyBinding", "hostile", "admissionregistration.k8s.io/v1", spec=binding)
    )

    async def refuses() -> bool:
        return "refused" in str(await cluster.rejection(queue("probe")))

    await cluster.wait_until(refuses, "the policy to act", within=60)
    for verb in (
        "job run m",
        "job suspend j",
        "job delete j",
        "queue create m",
        "queue update q -w 4",
        "queue delete q",
    ):
        assert r"refused \x1b" in await _check(run, verb, tmp_path), verb
