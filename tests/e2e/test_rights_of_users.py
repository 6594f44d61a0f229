"""Every verb on a live cluster, by users with few rights, without the CustomResourceDefinitions, or out of reach."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from capcard_sched.cli.main import run
from capcard_sched.kube.controllers.records import RESOURCES
from capcard_sched.kube.kinds import KINDS
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import gang, gpu_node, job, plain, queue
from tests.controlplane.processes import free_port
from tests.e2e.asking import Answer, LiveCommand
from tests.insight.test_situations import HERE

A10 = "A10"
READER = HERE.parents[1] / "manifests" / "readers" / "clusterrole.yaml"


class Verb(NamedTuple):
    """A command line, and what a user sees who may read pods, PodGroups and Jobs of one namespace only."""

    words: str
    #: Part of the output of a success, or of the error line.
    seen: str
    status: int = 0
    #: Whether it takes -n.
    namespaced: bool = True


#: `{tmp}` is a folder.
READING = {
    verb.words.split(" {")[0]: verb
    for verb in (
        Verb("explain waits", "Not readable: nodes, podgroups of other namespaces, pods of other namespaces, queues"),
        Verb("job list", "waits"),
        Verb("pod list", "waits-0"),
        Verb("job get train", "train"),
        Verb("snapshot -o {tmp}/cluster.json", ""),
        Verb("queue list", "access denied: queues; queue list reads them", 2, namespaced=False),
        Verb("card list", "access denied: nodes; card list reads them", 2, namespaced=False),
        Verb("node list", "access denied: nodes; node list reads them", 2, namespaced=False),
        Verb("queue get q", 'cannot get resource "queues"', 2),
        Verb("what-if --drain n1 --until 1m", "access denied: nodes, ", 2, namespaced=False),
    )
}
WRITING = [
    "job run more",
    "job suspend train",
    "job resume train",
    "job delete train",
    "queue create more",
    "queue open q",
    "queue close q",
    "queue update q -w 2",
    "queue delete q",
]


Shell = Callable[..., Awaitable[Answer]]


@pytest.fixture
def shell(cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Runs verbs in this process as a user."""

    async def run_words(words: str, config: Path, *, namespaced: bool = True) -> Answer:
        scope = ["-n", cluster.namespace] if namespaced else []
        return await LiveCommand(config, cluster.namespace, capsys)(*words.format(tmp=tmp_path).split(), *scope)

    return run_words


async def furnish(cluster: Cluster) -> None:
    """`runs` holds the quota, `waits` waits, `train` has no PodGroup."""
    await cluster.create_all([gpu_node("n1", A10, 8), queue("q", cards={A10: 2})])
    card = {"cpu": "1", "nvidia.com/gpu": "1"}
    for name in ("runs", "waits"):
        await cluster.create_all(gang(name, 2, queue="q", cards=A10, requests=card))
    for member in range(2):
        await cluster.bind(f"runs-{member}", "n1")
    await cluster.create(job("train", 1, schedulerName="volcano", minAvailable=1))


def one_error(err: str) -> str:
    """The last line, which is the only error."""
    lines = err.splitlines()
    assert [line for line in lines if not line.startswith("note: ")] == lines[-1:], err
    assert lines[-1].startswith("error: "), err
    return lines[-1]


@pytest.mark.parametrize("words", [*(verb.words for verb in READING.values()), *WRITING])
def test_an_unreachable_api_server_is_one_line(
    words: str, control_plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = f"https://127.0.0.1:{free_port()}"
    config = control_plane.kubeconfig_for("scheduler-b", server=server)
    assert run([*words.format(tmp=tmp_path).split(), f"--kubeconfig={config}"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"error: {server}: ")


async def test_without_rights_each_verb_names_the_denied_rights(
    cluster: Cluster, control_plane: ControlPlane, shell: Shell
) -> None:
    await furnish(cluster)
    without_rights = control_plane.kubeconfig_for("somebody")
    for words in (*(verb.words for verb in READING.values()), *WRITING):
        status, out, err = await shell(words, without_rights, namespaced="get" in words or words in WRITING)
        assert (status, out) == (2, ""), words
        assert " is forbidden: " in one_error(err), words


async def test_rights_in_one_namespace_show_readable_objects_and_name_denied_rights(
    cluster: Cluster, control_plane: ControlPlane, shell: Shell, tmp_path: Path
) -> None:
    await furnish(cluster)
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
        {"apiGroups": ["scheduling.volcano.sh"], "resources": ["podgroups"], "verbs": ["get", "list"]},
        {"apiGroups": ["batch.volcano.sh"], "resources": ["jobs"], "verbs": ["get", "list"]},
    ]
    await cluster.allow("somebody", rules)
    config = control_plane.kubeconfig_for("somebody", namespace=cluster.namespace)
    for verb in READING.values():
        status, out, err = await shell(verb.words, config, namespaced=verb.namespaced)
        assert status == verb.status, (verb.words, out, err)
        if status:
            assert verb.seen in one_error(err), verb.words
        else:
            assert verb.seen in out, verb.words
            assert "error" not in err, verb.words
        if "get" not in verb.words:
            assert "note: access denied: " in err, verb.words
            assert "; ask for ClusterRole capcard-sched-reader (manifests/readers)" in err, verb.words
            assert "nodes, " in err, verb.words
    saved = json.loads(await asyncio.to_thread((tmp_path / "cluster.json").read_text))
    assert {item["kind"] for item in saved["items"]} == {"Pod", "PodGroup"}
    assert [obj["metadata"]["name"] for obj in saved["explained"]] == ["train"]
    assert {"nodes", "queues", "pods of other namespaces"} <= set(saved["savedState"]["unreadable"])
    elsewhere = await shell("job list -n elsewhere", config, namespaced=False)
    assert elsewhere[0] == 2
    assert " is forbidden: " in one_error(elsewhere[2])
    assert one_error(elsewhere[2]).endswith(
        "missing rights: ask for ClusterRole capcard-sched-reader (manifests/readers)"
    )


@pytest.mark.parametrize("words", ["job list -A -w", "queue list -w", "node list -w"])
async def test_a_watch_without_the_right_to_watch_is_one_line(
    words: str, cluster: Cluster, control_plane: ControlPlane, shell: Shell
) -> None:
    await furnish(cluster)
    rules = yaml.safe_load(READER.read_text())["rules"]
    no_watch = [{**rule, "verbs": [verb for verb in rule["verbs"] if verb != "watch"]} for rule in rules]
    await cluster.allow("somebody", no_watch, everywhere=True)
    async with asyncio.timeout(60):
        status, out, err = await shell(words, control_plane.kubeconfig_for("somebody"), namespaced=False)
    assert (status, out) == (2, "")
    assert one_error(err).startswith("error: --watch: access denied: ")
    assert 'cannot watch resource "' in one_error(err)


async def test_the_role_of_readers_suffices_for_each_reading_verb(
    cluster: Cluster, control_plane: ControlPlane, shell: Shell
) -> None:
    await furnish(cluster)
    await cluster.create(plain("ServiceAccount", "asker"))
    config = control_plane.kubeconfig_for(token=await cluster.token_of("asker"), name="asker")
    account = f"system:serviceaccount:{cluster.namespace}:asker"
    rules = yaml.safe_load(READER.read_text())["rules"]
    await cluster.allow(account, rules, everywhere=True)
    for verb in READING.values():
        status, _, err = await shell(verb.words, config, namespaced=verb.namespaced)
        assert status in ({0, 3} if verb.words.startswith("what-if") else {0}), (verb.words, err)
        assert "denied" not in err, verb.words

    def done() -> set[str]:
        return {row.verb for row in control_plane.audit() if row.user == account}

    await cluster.wait_until(lambda: done() >= {"get", "list"}, "the audit log")
    assert done() == {"get", "list"}, "nothing but reading"


@pytest.mark.parametrize("words", ["job get train", "queue list", "queue create more"])
async def test_missing_custom_resource_definitions_are_one_line(
    words: str, cluster: Cluster, control_plane: ControlPlane, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    unserved = tuple(replace(kind, path=kind.path.replace("v1beta1/", "v9/")) for kind in KINDS)
    monkeypatch.setattr("capcard_sched.insight.sources.live_objects.KINDS", unserved)
    for name in ("Queue", "Job", "PodGroup"):
        kind = RESOURCES[name]
        api = f"{kind.api_version.partition('/')[0]}/v9"
        monkeypatch.setitem(RESOURCES, name, kind._replace(api_version=api))
    status, out, err = await shell(words, control_plane.kubeconfig_for("admin"), namespaced="get" in words)
    assert (status, out) == (2, ""), err
    assert "is not served by the API server: install the CustomResourceDefinitions: kubectl apply" in one_error(err)
