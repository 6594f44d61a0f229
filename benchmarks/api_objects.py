"""Pods and nodes as an API server sends them: every field of a live cluster, managed fields included."""

from __future__ import annotations

from typing import Any

import msgspec

_MANAGERS = ("kube-controller-manager", "capcard-sched", "kubelet")


def _owned(*names: str) -> dict[str, Any]:
    return {f"f:{name}": {} for name in names}


def _managed(manager: str, fields: dict[str, Any], sub: str = "") -> dict[str, Any]:
    entry = {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-11-21T09:30:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    return {**entry, "subresource": sub} if sub else entry


def pod(index: int, *, gang: int = 8, node: str = "", scheduler: str = "capcard-sched") -> dict[str, Any]:
    """One pod of a gang, about 3 KB as JSON; bound and running when `node` is given."""
    job = f"train-{index // gang:05d}"
    metadata = {
        "name": f"{job}-worker-{index % gang}",
        "namespace": f"team-{index // gang % 16}",
        "uid": f"6f0a1c3e-{index % 65536:04x}-4b7d-9c0e-{index:012x}",
        "resourceVersion": str(1_000_000 + index),
        "generation": 1,
        "creationTimestamp": "2026-11-21T09:29:58Z",
        "labels": {
            "app": "trainer",
            "volcano.sh/job-name": job,
            "volcano.sh/job-namespace": f"team-{index // gang % 16}",
            "volcano.sh/queue-name": f"queue-{index // gang % 4}",
            "volcano.sh/task-index": str(index % gang),
            "volcano.sh/task-spec": "worker",
        },
        "annotations": {
            "scheduling.k8s.io/group-name": f"{job}-6f0a1c3e",
            "volcano.sh/card.name": "NVIDIA-H200|NVIDIA-H100",
            "volcano.sh/job-name": job,
            "volcano.sh/job-version": "0",
            "volcano.sh/queue-name": f"queue-{index // gang % 4}",
            "volcano.sh/task-index": str(index % gang),
            "volcano.sh/task-spec": "worker",
            "volcano.sh/template-uid": f"{job}-worker",
        },
        "ownerReferences": [
            {
                "apiVersion": "batch.volcano.sh/v1alpha1",
                "kind": "Job",
                "name": job,
                "uid": f"0b1c2d3e-0000-4b7d-9c0e-{index // gang:012x}",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
        "managedFields": [
            _managed(
                _MANAGERS[0],
                {
                    "f:metadata": {
                        "f:annotations": {".": {}, **_owned("volcano.sh/job-name", "volcano.sh/task-spec")},
                        "f:labels": {".": {}, **_owned("app", "volcano.sh/job-name", "volcano.sh/queue-name")},
                        "f:ownerReferences": {".": {}, f'k:{{"uid":"{index:012x}"}}': {}},
                    },
                    "f:spec": {
                        "f:containers": {
                            'k:{"name":"main"}': {
                                ".": {},
                                **_owned(
                                    "image", "imagePullPolicy", "name", "terminationMessagePath", "command", "env"
                                ),
                                "f:resources": {".": {}, "f:limits": {".": {}, **_owned("cpu", "nvidia.com/gpu")}},
                            }
                        },
                        **_owned("dnsPolicy", "enableServiceLinks", "restartPolicy", "schedulerName"),
                        **_owned("securityContext", "terminationGracePeriodSeconds"),
                    },
                },
            )
        ],
    }
    spec: dict[str, Any] = {
        "volumes": [{"name": "kube-api-access-x7k2p", "projected": {"defaultMode": 420, "sources": []}}],
        "containers": [
            {
                "name": "main",
                "image": "registry.example.com/ml/trainer:2.9.1",
                "command": ["python", "-m", "trainer", "--rank", str(index % gang)],
                "env": [{"name": "WORLD_SIZE", "value": str(gang)}, {"name": "MASTER_PORT", "value": "29500"}],
                "resources": {
                    "limits": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"},
                    "requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"},
                },
                "volumeMounts": [
                    {
                        "name": "kube-api-access-x7k2p",
                        "readOnly": True,
                        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                    }
                ],
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent",
            }
        ],
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "securityContext": {},
        "schedulerName": scheduler,
        "tolerations": [
            {
                "key": "node.kubernetes.io/not-ready",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            },
            {
                "key": "node.kubernetes.io/unreachable",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            },
        ],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    status: dict[str, Any] = {"phase": "Pending", "qosClass": "Guaranteed"}
    if node:
        spec["nodeName"] = node
        status |= {"phase": "Running", "startTime": "2026-11-21T09:30:00Z", "podIP": "10.0.0.7", "hostIP": "10.1.0.7"}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec, "status": status}


def node(index: int, beat: int = 0, *, images: int = 20) -> dict[str, Any]:
    """One GPU node, about 8 KB as JSON; `beat` moves its heartbeat and resourceVersion and nothing else."""
    name = f"gpu-{index:05d}"
    minute, second = divmod(beat * 10 % 3600, 60)
    heartbeat = f"2026-11-21T10:{minute:02d}:{second:02d}Z"
    conditions = [
        {
            "type": kind,
            "status": "True" if kind == "Ready" else "False",
            "lastHeartbeatTime": heartbeat,
            "lastTransitionTime": "2026-11-20T08:00:00Z",
            "reason": f"Kubelet{kind}",
            "message": f"kubelet reports {kind}",
        }
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    amounts = {
        "cpu": "192",
        "memory": "2113487164Ki",
        "ephemeral-storage": "1843223560Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "nvidia.com/gpu": "8",
        "pods": "250",
    }
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "uid": f"1d2e3f40-{index:04x}-4b7d-9c0e-{index:012x}",
            "resourceVersion": str(1_000_000 + beat * 100_000 + index),
            "creationTimestamp": "2026-11-20T08:00:00Z",
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": "gpu.8x",
                "nvidia.com/gpu.count": "8",
                "nvidia.com/gpu.memory": "143771",
                "nvidia.com/gpu.product": "NVIDIA-H200",
                "topology.kubernetes.io/region": "eu-1",
                "topology.kubernetes.io/zone": f"eu-1-{index % 3}",
            },
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
            "managedFields": [
                _managed(
                    "kubelet",
                    {
                        "f:metadata": {"f:labels": {".": {}, **_owned("kubernetes.io/arch", "kubernetes.io/hostname")}},
                        "f:status": {
                            "f:allocatable": _owned(*amounts),
                            "f:conditions": {
                                f'k:{{"type":"{item["type"]}"}}': _owned("lastHeartbeatTime", "status", "message")
                                for item in conditions
                            },
                        },
                    },
                    "status",
                )
            ],
        },
        "spec": {"podCIDR": f"10.{index // 256}.{index % 256}.0/24", "providerID": f"example://{name}"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": "10.1.0.7"}, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": f"{index:032x}",
                "kernelVersion": "6.8.0",
                "osImage": "Example Linux",
                "containerRuntimeVersion": "containerd://2.1.0",
                "kubeletVersion": "v1.34.1",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
            "images": [
                {
                    "names": [
                        f"registry.example.com/ml/image-{item}@sha256:{item:064x}",
                        f"registry.example.com/ml/image-{item}:1.{item}",
                    ],
                    "sizeBytes": 1_000_000_000 + item,
                }
                for item in range(images)
            ],
        },
    }


def event(kind: str, obj: dict[str, Any]) -> bytes:
    """One line of a watch."""
    return msgspec.json.encode({"type": kind, "object": obj}) + b"\n"
