"""Paths of objects, and their names in RBAC."""

from __future__ import annotations

import pytest

from capcard_sched.kube import paths


@pytest.mark.parametrize(
    "path, expected, resource, collection",
    [
        (paths.pod_path("ns", "p"), "/api/v1/namespaces/ns/pods/p", "pods", False),
        (paths.pod_path("ns", "p", "binding"), "/api/v1/namespaces/ns/pods/p/binding", "pods/binding", False),
        (paths.node_path("n"), "/api/v1/nodes/n", "nodes", False),
        (paths.queue_path("q"), "/apis/scheduling.volcano.sh/v1beta1/queues/q", "queues", False),
        (
            paths.queue_path("q", "status"),
            "/apis/scheduling.volcano.sh/v1beta1/queues/q/status",
            "queues/status",
            False,
        ),
        (
            paths.podgroup_path("ns", "g"),
            "/apis/scheduling.volcano.sh/v1beta1/namespaces/ns/podgroups/g",
            "podgroups",
            False,
        ),
        (paths.events_path("ns"), "/api/v1/namespaces/ns/events", "events", True),
        (paths.events_path("ns", "e"), "/api/v1/namespaces/ns/events/e", "events", False),
        (paths.leases_path("ns"), "/apis/coordination.k8s.io/v1/namespaces/ns/leases", "leases", True),
        (paths.lease_path("ns", "l"), "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l", "leases", False),
        (
            paths.claim_path("ns", "c"),
            "/api/v1/namespaces/ns/persistentvolumeclaims/c",
            "persistentvolumeclaims",
            False,
        ),
        (paths.volume_path("v"), "/api/v1/persistentvolumes/v", "persistentvolumes", False),
        (paths.PODS, "/api/v1/pods", "pods", True),
        (paths.NAMESPACES, "/api/v1/namespaces", "namespaces", True),
        ("/api/v1/namespaces/ns", "/api/v1/namespaces/ns", "namespaces", False),
        ("/api/v1/namespaces/ns/status", "/api/v1/namespaces/ns/status", "namespaces/status", False),
        ("/version", "/version", "/version", False),
    ],
)
def test_paths_and_their_resources(path: str, expected: str, resource: str, collection: bool) -> None:
    assert path == expected
    assert paths.resource_of(path) == (resource, collection)


def test_names_cannot_lead_elsewhere() -> None:
    assert paths.pod_path("ns", "../../nodes/n") == "/api/v1/namespaces/ns/pods/..%2F..%2Fnodes%2Fn"
    assert (
        paths.podgroup_path("ns", "a?b#c d")
        == "/apis/scheduling.volcano.sh/v1beta1/namespaces/ns/podgroups/a%3Fb%23c%20d"
    )


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_names_no_object_can_have_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid name of an object"):
        paths.pod_path("ns", name)


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
    assert paths.verb_of(method, collection=collection, watch=watch) == verb
