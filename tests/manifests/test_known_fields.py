"""The known fields are those of a real API server, and its strict validation finds the same unknown ones."""

from __future__ import annotations

import re
from typing import Any

import pytest

from capcard_sched.validation.unknown_fields import _field_names, unknown_fields
from tests.controlplane.cluster import Cluster, RequestError

CONTAINER = {"name": "c", "image": "x", "comand": ["a"], "resources": {"limit": {"cpu": 1}}}
POD_SPEC = {"containers": [CONTAINER], "nodeSelecter": {"a": "b"}, "tolerations": [{"operater": "Exists"}]}
TEMPLATE = {"metadata": {"labels": {"a": "b"}, "anotations": {}}, "spec": POD_SPEC}
WORKLOAD = {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE, "replica": 1}
OBJECTS: dict[str, dict[str, Any]] = {
    "pods": {"apiVersion": "v1", "kind": "Pod", "spec": POD_SPEC},
    "deployments": {"apiVersion": "apps/v1", "kind": "Deployment", "spec": WORKLOAD},
    "statefulsets": {"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": {**WORKLOAD, "serviceName": "s"}},
    "daemonsets": {"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": WORKLOAD},
    "jobs.batch": {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": TEMPLATE, "completion": 1}},
    "cronjobs.batch": {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": TEMPLATE}}, "suspended": True},
    },
    "priorityclasses": {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1, "preemption": "x"},
    "configmaps": {"apiVersion": "v1", "kind": "ConfigMap", "data": {"any": "x"}, "dat": {}},
}


@pytest.mark.parametrize("plural", OBJECTS)
async def test_strict_validation_finds_the_same_unknown_fields(cluster: Cluster, plural: str) -> None:
    manifest = {**OBJECTS[plural], "metadata": {"name": "a", "lables": {}}}
    params = {"fieldValidation": "Strict", "dryRun": "All"}
    with pytest.raises(RequestError) as refused:
        await cluster.request("POST", await cluster.path(plural), params=params, body=manifest)
    expected = set(re.findall(r'unknown field "([^"]+)"', refused.value.message))
    assert expected
    assert {finding.field for finding in unknown_fields(manifest)} == expected


#: Types of the API server whose names another type of the table has.
_RENAMED = {"io.k8s.api.core.v1.ResourceClaim": "ContainerClaim"}


async def test_every_field_of_the_api_server_is_known(cluster: Cluster) -> None:
    definitions = (await cluster.request("GET", "/openapi/v2"))["definitions"]
    types, compared = _field_names().types, 0
    for name, schema in definitions.items():
        known = types.get(_RENAMED.get(name, name.rpartition(".")[2]))
        if known is None or not re.match(r"io\.k8s\.(api\.[a-z]+|apimachinery\.pkg\.apis\.meta)\.v1\.", name):
            continue
        group, kind = name.split(".")[-3], name.rpartition(".")[2]
        if kind in ("Job", "CronJob") or group in ("events", "resource"):  # types of the table have these names
            continue
        compared += 1
        assert set(schema.get("properties", {})) <= set(known), name
    assert compared > 200
