"""Paths of objects, and their names in RBAC."""

from __future__ import annotations

import pytest

from capcard_sched.kube.paths import collection_path, object_path, resource_of, verb_of
from capcard_sched.model.kinds import Kind

VOLCANO = "/apis/scheduling.volcano.sh/v1beta1"


@pytest.mark.parametrize(
    "path, expected, resource, collection",
    [
        (object_path("Pod", "ns", "p"), "/api/v1/namespaces/ns/pods/p", "pods", False),
        (object_path("Pod", "ns", "p", "binding"), "/api/v1/namespaces/ns/pods/p/binding", "pods/binding", False),
        (object_path("Node", "", "n"), "/api/v1/nodes/n", "nodes", False),
        (object_path("Queue", "", "q", "status"), f"{VOLCANO}/queues/q/status", "queues/status", False),
        (object_path("PodGroup", "ns", "g"), f"{VOLCANO}/namespaces/ns/podgroups/g", "podgroups", False),
        (
            object_path("Pod", "ns", "../../a?b#c d"),
            "/api/v1/namespaces/ns/pods/..%2F..%2Fa%3Fb%23c%20d",
            "pods",
            False,
        ),
        (collection_path("Event", "ns"), "/api/v1/namespaces/ns/events", "events", True),
        (collection_path("Lease", "ns"), "/apis/coordination.k8s.io/v1/namespaces/ns/leases", "leases", True),
        (object_path("Lease", "ns", "l"), "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l", "leases", False),
        (object_path(Kind("Thing", "a/v1", "things"), "", "t"), "/apis/a/v1/things/t", "things", False),
        (collection_path("Pod"), "/api/v1/pods", "pods", True),
        (collection_path("Namespace"), "/api/v1/namespaces", "namespaces", True),
        ("/api/v1/namespaces/ns", "/api/v1/namespaces/ns", "namespaces", False),
        ("/api/v1/namespaces/ns/status", "/api/v1/namespaces/ns/status", "namespaces/status", False),
        ("/version", "/version", "/version", False),
    ],
)
def test_paths_and_their_resources_and_names_cannot_lead_elsewhere(
    path: str, expected: str, resource: str, collection: bool
) -> None:
    assert path == expected
    assert resource_of(path) == (resource, collection)


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_names_no_object_can_have_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid name of an object"):
        object_path("Pod", "ns", name)


@pytest.mark.parametrize(
    "method, collection, watch, verb",
    [
        ("GET", True, False, "list"),
        ("GET", True, True, "watch"),
        ("GET", False, False, "get"),
        ("POST", True, False, "create"),
        ("POST", False, False, "create"),
        ("PUT", False, False, "update"),
        ("PATCH", False, False, "patch"),
        ("DELETE", False, False, "delete"),
        ("DELETE", True, False, "deletecollection"),
        ("HEAD", False, False, "head"),
    ],
)
def test_verbs_of_rbac(method: str, collection: bool, watch: bool, verb: str) -> None:
    assert verb_of(method, collection=collection, watch=watch) == verb
