"""In-place resizes: usage is the maximum of specified, allocated and actual requests, as in kube-scheduler."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from capcard_sched.kube.kinds import KINDS
from capcard_sched.model import deltas
from capcard_sched.model.objects import PodObject
from capcard_sched.model.pod_requests import resizes
from capcard_sched.model.pod_template import template_of
from capcard_sched.state.cluster import ClusterState
from tests.objects import group, node, queue

GPU = "nvidia.com/gpu"
Json = dict[str, Any]


def _resources(amounts: Json | None) -> Json:
    return {} if amounts is None else {"resources": {"requests": amounts}}


def _status(name: str, allocated: Json | None, actual: Json | None) -> Json:
    return {
        "name": name,
        "ready": True,
        **({"allocatedResources": allocated} if allocated else {}),
        **_resources(actual),
    }


def _pending(reason: str) -> Json:
    return {"conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}]}


IN_PROGRESS: Json = {"conditions": [{"type": "PodResizeInProgress", "status": "True"}]}


def _pod(spec: Json, allocated: Json | None, actual: Json | None, status: Json, **pod_spec: Any) -> PodObject:
    body = {
        "metadata": {"name": "p", "namespace": "default", "uid": "p-uid"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", **_resources(spec)}], **pod_spec},
        "status": {"phase": "Running", "containerStatuses": [_status("c", allocated, actual)], **status},
    }
    return msgspec.convert(body, PodObject)


ONE, TWO, FOUR = {"cpu": "1"}, {"cpu": "2"}, {"cpu": "4"}


@pytest.mark.parametrize(
    "spec, allocated, actual, status, cpu",
    [
        pytest.param(TWO, TWO, TWO, {}, 2000, id="no resize"),
        pytest.param(FOUR, TWO, TWO, _pending("Deferred"), 4000, id="deferred: the larger request counts"),
        pytest.param(FOUR, TWO, TWO, _pending("Infeasible"), 2000, id="infeasible: the specified request does not"),
        pytest.param(FOUR, TWO, TWO, {"resize": "Infeasible"}, 2000, id="infeasible before Kubernetes 1.33"),
        pytest.param(FOUR, ONE, TWO, _pending("Infeasible"), 2000, id="infeasible: the actual one above the allocated"),
        pytest.param(FOUR, TWO, ONE, _pending("Infeasible"), 2000, id="infeasible: the allocated one above the actual"),
        pytest.param(FOUR, FOUR, TWO, IN_PROGRESS, 4000, id="in progress upwards"),
        pytest.param(ONE, ONE, TWO, IN_PROGRESS, 2000, id="in progress downwards: actual"),
        pytest.param(ONE, FOUR, TWO, {}, 4000, id="downwards before the kubelet allocates: allocated"),
        pytest.param(ONE, None, TWO, {}, 2000, id="no allocated amounts"),
        pytest.param(TWO, FOUR, None, {}, 4000, id="no actual resources: allocated"),
        pytest.param(TWO, None, None, _pending("Infeasible"), 0, id="infeasible without any status: nothing"),
        pytest.param(TWO, None, None, {}, 2000, id="a container that has not started"),
    ],
)
def test_a_resize_counts_with_the_largest_request(
    spec: Json, allocated: Json | None, actual: Json | None, status: Json, cpu: int
) -> None:
    found = template_of(_pod(spec, allocated, actual, status))
    assert (found.requests.get("cpu", 0), found.nonzero_cpu_milli) == (cpu, cpu or 100)


def test_devices_count_as_specified_also_while_a_resize_is_infeasible() -> None:
    pod = _pod({"cpu": "4", GPU: "8"}, ONE, ONE, _pending("Infeasible"))
    assert template_of(pod).requests == {"cpu": 1000, GPU: 8000, "pods": 1}


def test_sidecars_and_other_init_containers_are_resized() -> None:
    init = [{"name": "s", "restartPolicy": "Always", **_resources(ONE)}, {"name": "i", **_resources(ONE)}]
    statuses = {"initContainerStatuses": [_status("s", FOUR, FOUR), _status("i", FOUR, FOUR)]}
    assert template_of(_pod(ONE, ONE, ONE, statuses, initContainers=init)).requests["cpu"] == 8000


def test_equal_requests_are_no_resize() -> None:
    assert resizes(_pod(TWO, TWO, TWO, {})) == ()
    assert resizes(_pod(TWO, None, TWO, {})) == ()
    assert resizes(_pod(TWO, TWO, None, {})) == ()


def test_usage_of_node_and_queue_follows_a_resize() -> None:
    state = ClusterState(("capcard-sched",), "default")
    for delta in (queue("q"), node("n"), group("g")):
        state.apply(delta)
    own: Json = {"scheduling.k8s.io/group-name": "g"}

    def apply(*args: Any) -> tuple[int, int]:
        pod = _pod(*args, schedulerName="capcard-sched")
        pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=own))
        state.apply(deltas.ObjectChanged(pod))
        return int(state.nodes.used[0][0]), int(state.queues["q"].allocated[0])

    assert apply(TWO, TWO, TWO, {}) == (2000, 2000)
    assert apply(FOUR, TWO, TWO, _pending("Deferred")) == (4000, 4000)
    assert apply(FOUR, TWO, TWO, _pending("Infeasible")) == (2000, 2000)
    assert apply(ONE, ONE, TWO, IN_PROGRESS) == (2000, 2000)
    assert apply(ONE, ONE, ONE, {}) == (1000, 1000)


def test_the_watch_delivers_a_change_of_the_resize_and_drops_other_container_statuses() -> None:
    (kind,) = (kind for kind in KINDS if kind.name == "Pod")
    assert kind.derives is not None
    started, ready = _pod(TWO, None, None, {}), _pod(TWO, TWO, TWO, {})
    assert kind.derives(started) == kind.derives(ready)
    derived = [kind.derives(_pod(FOUR, TWO, TWO, status)) for status in (_pending("Deferred"), _pending("Infeasible"))]
    assert derived[0] != derived[1] != kind.derives(ready)
