"""The plugins of Jobs: variables, host names, volumes and objects, and their life with the Job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.controllers.bench import GRACE, ClusterBench, Manifest, task


def _started(plugins: dict[str, list[str]], *tasks: Manifest) -> ClusterBench:
    bench = ClusterBench()
    bench.running_job("j", *(tasks or (task("master", 1), task("worker", 2))), plugins=plugins)
    return bench


def _env(bench: ClusterBench, pod: str) -> dict[str, Any]:
    container = bench.get("Pod", pod)["spec"]["containers"][0]
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container.get("env", ())}


def _ports(bench: ClusterBench, pod: str) -> list[int]:
    return [entry["containerPort"] for entry in bench.get("Pod", pod)["spec"]["containers"][0].get("ports", ())]


def test_env_adds_the_index_and_keeps_variables_of_the_template() -> None:
    given = task("worker", 2)
    given["template"]["spec"]["containers"][0]["env"] = [{"name": "VK_TASK_INDEX", "value": "mine"}]
    bench = _started({"env": []}, given)
    assert _env(bench, "j-worker-1") == {"VK_TASK_INDEX": "mine", "VC_TASK_INDEX": "1"}
    assert bench.status()["controlledResources"] == {"plugin-env": "env"}


def test_svc_gives_names_to_the_pods_and_lists_them() -> None:
    bench = _started({"svc": []}, task("master", 1), task("data-worker", 2))
    pod = bench.get("Pod", "j-data-worker-1")["spec"]
    assert (pod["hostname"], pod["subdomain"]) == ("j-data-worker-1", "j")
    assert pod["volumes"] == [{"name": "j-svc", "configMap": {"name": "j-svc"}}]
    assert pod["containers"][0]["volumeMounts"] == [{"name": "j-svc", "mountPath": "/etc/volcano"}]
    reference = {"configMapKeyRef": {"name": "j-svc", "key": "VC_DATA_WORKER_HOSTS"}}
    assert _env(bench, "j-master-0")["VC_DATA_WORKER_HOSTS"] == reference
    assert bench.get("ConfigMap", "j-svc")["data"] == {
        "master.host": "j-master-0.j",
        "data-worker.host": "j-data-worker-0.j\nj-data-worker-1.j",
        "VC_MASTER_HOSTS": "j-master-0.j",
        "VC_MASTER_NUM": "1",
        "VC_DATA_WORKER_HOSTS": "j-data-worker-0.j,j-data-worker-1.j",
        "VC_DATA_WORKER_NUM": "2",
    }
    service = bench.get("Service", "j")["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", False)
    assert service["selector"] == {"volcano.sh/job-name": "j", "volcano.sh/job-namespace": "default"}
    policy = bench.get("NetworkPolicy", "j")["spec"]
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": service["selector"]}}]}]


def test_svc_takes_its_arguments() -> None:
    bench = _started({"svc": ["--disable-network-policy=true", "--publish-not-ready-addresses"]})
    assert bench.names("NetworkPolicy") == []
    assert bench.get("Service", "j")["spec"]["publishNotReadyAddresses"] is True


def test_the_objects_of_plugins_follow_the_replicas_and_live_as_long_as_the_gang() -> None:
    bench = ClusterBench()
    tasks = [task("worker", 2, minAvailable=1)]
    bench.running_job("j", *tasks, minAvailable=1, plugins={"svc": [], "ssh": []})
    key = bench.get("Secret", "j-ssh")["stringData"]["id_rsa"]
    bench.patch("Job", "j", {"spec": {"tasks": [task("worker", 3, minAvailable=1)]}})
    assert bench.get("ConfigMap", "j-svc")["data"]["VC_WORKER_NUM"] == "3"
    secret = bench.get("Secret", "j-ssh")["stringData"]
    assert "Host j-worker-2\n  HostName j-worker-2.j\n" in secret["config"]
    assert (secret["id_rsa"], secret["authorized_keys"]) == (key, secret["id_rsa.pub"])
    uid = bench.get("Service", "j")["metadata"]["uid"]
    bench.command("AbortJob")
    assert [bench.names(kind) for kind in ("Service", "ConfigMap", "Secret", "NetworkPolicy")] == [[]] * 4
    bench.wait(GRACE)
    bench.command("ResumeJob")
    assert bench.get("Service", "j")["metadata"]["uid"] != uid
    bench.delete("Job", "j")
    assert bench.names("Secret") == []


def test_a_restarted_task_keeps_the_objects_of_plugins() -> None:
    bench = ClusterBench()
    policies = [{"event": "PodEvicted", "action": "RestartTask"}]
    bench.running_job("j", task("worker", 2), policies=policies, plugins={"svc": []})
    uid = bench.get("Service", "j")["metadata"]["uid"]
    bench.evict("j-worker-0")
    bench.wait(GRACE)
    assert bench.retries() == 1
    assert bench.get("Service", "j")["metadata"]["uid"] == uid


def test_ssh_mounts_the_keys_at_the_path_of_its_argument() -> None:
    bench = _started({"ssh": ["--ssh-key-file-path=/home/user/.ssh"]})
    pod = bench.get("Pod", "j-worker-0")["spec"]
    assert pod["containers"][0]["volumeMounts"] == [{"name": "j-ssh", "mountPath": "/home/user/.ssh"}]
    assert pod["volumes"][0]["secret"]["defaultMode"] == 0o600
    assert [item["path"] for item in pod["volumes"][0]["secret"]["items"]] == [
        "id_rsa",
        "id_rsa.pub",
        "authorized_keys",
        "config",
    ]


@pytest.mark.parametrize("pod, rank", [("j-master-0", "0"), ("j-worker-0", "1"), ("j-worker-1", "2")])
def test_pytorch_gives_every_process_its_rank(pod: str, rank: str) -> None:
    bench = _started({"pytorch": ["--port", "9999"]})
    env = _env(bench, pod)
    assert {key: env[key] for key in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")} == {
        "MASTER_ADDR": "j-master-0.j",
        "MASTER_PORT": "9999",
        "WORLD_SIZE": "3",
        "RANK": rank,
    }
    assert _ports(bench, pod) == [9999]
    assert bench.names("Service") == ["j"], "svc is implied"


def test_mpi_lists_the_workers_for_the_master() -> None:
    bench = _started({"mpi": []})
    assert _env(bench, "j-master-0")["MPI_HOST"] == "j-worker-0.j,j-worker-1.j"
    assert "MPI_HOST" not in _env(bench, "j-worker-0")
    assert _ports(bench, "j-worker-0") == [22]
    assert (bench.names("Service"), bench.names("Secret")) == (["j"], ["j-ssh"]), "svc and ssh are implied"


def test_tensorflow_describes_the_cluster() -> None:
    bench = _started({"tensorflow": []}, task("ps", 1), task("worker", 2), task("evaluator", 1))
    assert json.loads(_env(bench, "j-worker-1")["TF_CONFIG"]) == {
        "cluster": {"ps": ["j-ps-0.j:2222"], "worker": ["j-worker-0.j:2222", "j-worker-1.j:2222"]},
        "task": {"type": "worker", "index": 1},
    }
    assert json.loads(_env(bench, "j-evaluator-0")["TF_CONFIG"])["task"] == {"type": "evaluator", "index": 0}
    assert _ports(bench, "j-ps-0") == [2222]


def test_ray_starts_head_and_workers() -> None:
    roles = [task("head", 1), task("worker", 1)]
    for role in roles:
        role["template"]["spec"]["containers"][0]["name"] = role["name"]
    bench = _started({"ray": []}, *roles)
    head, worker = (bench.get("Pod", f"j-{name}-0")["spec"]["containers"][0] for name in ("head", "worker"))
    assert head["command"][-1] == (
        "ray start --head --block --dashboard-host=0.0.0.0 --port=6379 --dashboard-port=8265 "
        "--ray-client-server-port=10001"
    )
    assert _ports(bench, "j-head-0") == [6379, 8265, 10001]
    assert worker["command"][-1] == "ray start --block --address=j-head-0.j:6379"
    assert [port["port"] for port in bench.get("Service", "j-head-svc")["spec"]["ports"]] == [6379, 8265, 10001]


def test_hcclrank_counts_masters_first() -> None:
    ranked = task("other", 1)
    ranked["template"]["spec"]["containers"][0]["env"] = [{"name": "RANK", "value": "7"}]
    bench = _started({"hcclrank": []}, task("master", 2), task("worker", 1), ranked)
    ranks = {pod["metadata"]["name"]: pod["metadata"]["annotations"].get("hccl/rankIndex") for pod in bench.all("Pod")}
    assert ranks == {"j-master-0": "0", "j-master-1": "1", "j-worker-0": "2", "j-other-0": "7"}


@pytest.mark.parametrize(
    "plugins, message",
    [
        ({"nope": []}, "unknown plugin 'nope': accepted: env, svc, ssh, pytorch, mpi, tensorflow, ray, hcclrank"),
        ({"env": ["--x=1"]}, "plugin env: unknown argument '--x=1': accepted: no arguments"),
        ({"mpi": ["--slave=s"]}, "plugin mpi: unknown argument '--slave=s': accepted: --master, --worker, --port"),
        ({"pytorch": ["--port=0"]}, "plugin pytorch: --port=0 is not a port: accepted is 1 to 65535"),
        (
            {"svc": ["--disable-network-policy=no"]},
            "plugin svc: --disable-network-policy=no: accepted is true or false",
        ),
    ],
)
def test_a_mistake_is_reported_once_and_holds_the_job_back(plugins: dict[str, list[str]], message: str) -> None:
    bench = _started(plugins)
    bench.patch("Job", "j", {"metadata": {"labels": {"touched": "yes"}}})
    assert bench.messages("Job", "PluginError") == [message]
    assert (bench.phase(), bench.names("Pod")) == ("Pending", [])


def test_an_object_of_others_is_neither_used_nor_deleted() -> None:
    bench = ClusterBench()
    bench.create("Service", "j", spec={"clusterIP": "10.0.0.1"})
    bench.running_job("j", task("worker", 1), plugins={"svc": []})
    assert (bench.names("Pod"), bench.names("PodGroup")) == ([], [])
    assert "already exists" in bench.messages("Job", "FailedCreate")[0]
    bench.command("AbortJob")
    bench.wait(GRACE)
    assert bench.phase() == "Aborted"
    assert bench.get("Service", "j")["spec"] == {"clusterIP": "10.0.0.1"}
