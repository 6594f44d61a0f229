"""Bytes of lists and watches to lines, pages and objects: what is wrong with one object stays with that one."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import api_objects
from benchmarks.decode import lines, measure_decoding
from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.decode import (
    DecodeFailure,
    KindDecoder,
    LineBuffer,
    ReadAhead,
    UndecodableObject,
    WatchEvent,
    pages,
)
from capcard_sched.kube.informers import list_all
from capcard_sched.kube.kinds import KINDS, WatchedKind, config_map_kinds
from capcard_sched.model.objects import NodeObject, PodObject, QueueObject
from tests.clock import until
from tests.controlplane.cluster import Cluster
from tests.controlplane.proxy import Proxy
from tests.kube.read.mirror import GRANT, PODS_AND_NODES, Ears, Mirror

POD, QUEUE, CLASS = (next(kind for kind in KINDS if kind.name == name) for name in ("Pod", "Queue", "PriorityClass"))


def line(type: str, obj: Any) -> bytes:
    return msgspec.json.encode({"type": type, "object": obj}) + b"\n"


def meta(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "uid": f"uid-{name}", "resourceVersion": "7", **more}


GOOD = {"metadata": meta("good"), "spec": {"weight": 2}}
BAD = {"metadata": meta("bad", labels={"a": 1}), "spec": {"weight": 2}}


def test_an_object_of_wrong_types_leaves_the_others_alone() -> None:
    weight = {"metadata": meta("heavy"), "spec": {"weight": "very"}}
    first, second, third, last = KindDecoder(QUEUE).events(
        line("ADDED", GOOD) + line("MODIFIED", BAD) + line("ADDED", weight) + b"\n" + line("DELETED", GOOD)
    )
    assert isinstance(first, WatchEvent)
    assert isinstance(first.object, QueueObject)
    assert (first.type, first.object.metadata.name, first.object.spec.weight) == ("ADDED", "good", 2)
    assert isinstance(second, UndecodableObject)
    found = second.metadata
    assert (second.type, found.name, found.uid, found.resource_version) == ("MODIFIED", "bad", "uid-bad", "7")
    assert second.problem == "metadata.labels.a: expected a string, got the number 1"
    assert isinstance(third, UndecodableObject)
    assert third.problem == 'spec.weight: expected an integer, got the string "very"'
    assert last == WatchEvent("DELETED", first.object), "an empty line is skipped"


def test_a_bookmark_whose_lists_are_null_is_read() -> None:
    obj = {
        "kind": "Pod",
        "metadata": {"resourceVersion": "99", "annotations": {"k8s.io/initial-events-end": "true"}},
        "spec": {"containers": None},
        "status": {},
    }
    (event,) = KindDecoder(POD).events(line("BOOKMARK", obj))
    assert isinstance(event, WatchEvent)
    assert event.object.metadata.resource_version == "99"
    assert event.object.metadata.annotations == {"k8s.io/initial-events-end": "true"}


@pytest.mark.parametrize("kind", [POD, QUEUE, CLASS], ids=lambda kind: kind.name)
def test_an_error_event_is_decoded_for_every_kind(kind: WatchedKind[Any]) -> None:
    status = {"kind": "Status", "status": "Failure", "reason": "Expired", "message": "too old", "code": 410}
    *before, last = KindDecoder(kind).events(line("ADDED", {"metadata": meta("a")}) + line("ERROR", status))
    assert [event.object.metadata.name for event in before if isinstance(event, WatchEvent)] == ["a"]
    assert isinstance(last, DecodeFailure)
    assert (last.status.code, last.status.reason, last.status.message) == (410, "Expired", "too old")


@pytest.mark.parametrize(
    "broken",
    [b"{]\n", b"null\n", b"[]\n", b'"x"\n', b"{}\n", b'{"type":1,"object":{}}\n', b'{"type":"ADDED","object":\xff}\n'],
)
def test_a_line_that_is_no_event_ends_the_stream_after_the_events_before_it(broken: bytes) -> None:
    first, last = KindDecoder(QUEUE).events(line("ADDED", GOOD) + broken + line("ADDED", GOOD))
    assert isinstance(first, WatchEvent)
    assert isinstance(last, DecodeFailure)
    assert last.status.code == 0
    assert last.status.message


@pytest.mark.parametrize(
    ("body", "version", "following", "items"),
    [
        ({"metadata": {"resourceVersion": "50", "continue": "more"}, "items": [GOOD, BAD, GOOD]}, "50", "more", "+-+"),
        ({"metadata": {"resourceVersion": "5"}, "items": None}, "5", "", ""),
        ({"metadata": {}}, "", "", ""),
    ],
)
def test_a_page_with_a_bad_item_keeps_the_others_and_one_without_items_is_empty(
    body: Any, version: str, following: str, items: str
) -> None:
    page = KindDecoder(QUEUE).page(msgspec.json.encode(body))
    assert (page.version, page.following) == (version, following)
    assert "".join("-" if isinstance(item, UndecodableObject) else "+" for item in page.items) == items


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"items":{}}', b'{"items":["x"]}'])
def test_a_response_that_is_no_list_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        KindDecoder(QUEUE).page(body)


@pytest.mark.parametrize(
    "spec, status, node",
    [
        ({"nodeName": "n", "priority": "x"}, {"phase": "Running"}, "n"),
        ({"nodeName": "n", "priority": "x"}, {}, "n"),
        ({"nodeName": "n", "priority": "x"}, {"phase": "Succeeded"}, ""),
        ({"nodeName": "n", "priority": "x"}, {"phase": "Failed"}, ""),
        ({"priority": "x"}, {"phase": "Pending"}, ""),
        ({"nodeName": 1}, {"phase": "Running"}, ""),
        ("x", {"phase": "Running"}, ""),
    ],
)
def test_an_undecodable_pod_has_the_node_it_is_bound_to_while_it_is_unfinished(
    spec: object, status: object, node: str
) -> None:
    obj = {"metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": spec, "status": status}
    (event,) = KindDecoder(POD).events(line("MODIFIED", obj))
    assert isinstance(event, UndecodableObject)
    assert (event.metadata.uid, event.node) == ("u", node)


# --- its benchmark ---------------------------------------------------------------------------------------------------


def test_the_benchmark_measures_and_prints_every_figure() -> None:
    found = measure_decoding(pods=64, nodes=8, repeats=1)
    assert all(getattr(found, name) > 0 for name in found.__struct_fields__)
    assert found.pods_per_second > 0
    assert [text.split(":")[0] for text in lines(found)] == [
        f"64 pods of {found.pod_bytes:,.0f} bytes",
        "the same, unchanged",
        f"heartbeats of nodes of {found.node_bytes:,.0f} bytes",
    ]


def test_the_objects_of_the_benchmark_have_the_size_of_real_ones_and_the_fields_that_the_scheduler_reads() -> None:
    assert 2_500 <= len(api_objects.event("ADDED", api_objects.pod(7))) <= 3_500
    assert 5_000 <= len(api_objects.event("ADDED", api_objects.node(7))) <= 10_000
    (event,) = KindDecoder(POD).events(api_objects.event("ADDED", api_objects.pod(9, node="n")) + b"\n")
    assert isinstance(event, WatchEvent)
    assert isinstance(event.object, PodObject)
    spec = event.object.spec
    assert (spec.node_name, event.object.status.phase, spec.scheduler_name) == ("n", "Running", "capcard-sched")
    assert spec.containers[0].resources is not None
    assert spec.containers[0].resources.requests == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}
    first, later = (msgspec.convert(api_objects.node(3, beat), NodeObject) for beat in (0, 1))
    assert first.metadata.resource_version != later.metadata.resource_version
    assert (first.spec, first.status.allocatable) == (later.spec, later.status.allocatable)


# --- lines ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=12), st.data())
def test_lines_come_out_whole_and_at_once_wherever_the_stream_is_cut(whole: list[bytes], data: st.DataObject) -> None:
    stream = b"\n".join(whole)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    buffer, out = LineBuffer(), b""
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        out += buffer.feed(stream[start:end])
        assert out == stream[: stream.rfind(b"\n", 0, end) + 1]
        assert len(out) + buffer.pending == end


def test_a_line_without_end_is_given_up() -> None:
    buffer = LineBuffer(longest=100)
    buffer.feed(b"x" * 100)
    with pytest.raises(ValueError, match="a line of more than 100 bytes"):
        buffer.feed(b"x")


# --- lists of an API server -------------------------------------------------------------------------------------------


async def test_the_next_page_is_requested_before_a_page_is_taken_in(furnished: Cluster, proxy: Proxy) -> None:
    async with (
        Client(load_connection(str(proxy.kubeconfig_for("admin")))) as client,
        aclosing(pages(client, POD.path, KindDecoder(POD), size=3)) as found,
    ):
        first = await anext(found)
        await until(lambda: [one.status for one in proxy.exchanges] == [200, 200], "the second page")
        rest = [page async for page in found]
    assert [len(page.items) for page in (first, *rest)] == [3, 6], "small objects: a larger page"


async def test_a_larger_page_that_fails_is_requested_again_with_the_size_of_the_first(
    furnished: Cluster, proxy: Proxy
) -> None:
    proxy.answer("GET", "pods", 504, nth=2)
    async with Client(load_connection(str(proxy.kubeconfig_for("admin")))) as client:
        found = [page async for page in pages(client, POD.path, KindDecoder(POD), size=3)]
    assert [len(page.items) for page in found] == [3, 3, 3]
    assert [one.status for one in proxy.exchanges] == [200, 504, 200, 200]


async def test_pages_of_large_objects_do_not_grow(cluster: Cluster) -> None:
    large = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"c{number:02}"},
            "data": {"text": "x" * 900_000},
        }
        for number in range(25)
    ]
    await cluster.create_all(large)
    (kind,) = config_map_kinds([(cluster.namespace, "")])
    async with Client(load_connection(str(cluster.control_plane.kubeconfig))) as client:
        found = [page async for page in pages(client, kind.path, KindDecoder(kind), size=10)]
    assert [len(page.items) for page in found][:2] == [10, 10], "of small ones the second page has the other 15"


async def test_lists_that_are_read_ahead_are_those_of_each_kind_and_fail_alone_unless_no_server_is_reachable(
    furnished: Cluster,
) -> None:
    await furnished.allow("somebody", GRANT, everywhere=True)
    admin = load_connection(str(furnished.control_plane.kubeconfig))
    served = [kind for kind in KINDS if kind.expected]
    async with Client(admin) as client, ReadAhead(client, served) as lists:
        for number, kind in enumerate(served):
            ahead = [item async for page in lists.pages(number) for item in page.items]
            listed = pages(client, kind.path, KindDecoder(kind), field_selector=kind.field_selector)
            assert ahead == [item async for page in listed for item in page.items]
    connection = load_connection(str(furnished.control_plane.kubeconfig_for("somebody")))
    async with Client(connection) as client, ReadAhead(client, PODS_AND_NODES) as lists:
        failed = []
        for number, kind in enumerate(PODS_AND_NODES):
            try:
                assert [page async for page in lists.pages(number)]
            except ApiError:
                failed.append(kind.name)
        assert failed == ["Node"]
    unreachable = msgspec.structs.replace(connection, server="https://127.0.0.1:1")
    async with Client(unreachable) as client, ReadAhead(client, KINDS) as lists:
        for number in range(len(KINDS)):
            with pytest.raises(Unreachable):
                await anext(lists.pages(number))


async def test_everything_can_be_listed_once_and_forbidden_optional_kinds_are_left_out(furnished: Cluster) -> None:
    mirror, ears = Mirror(), Ears()
    async with Client(load_connection(str(furnished.control_plane.kubeconfig))) as client:
        mirror.deliver(await list_all(client, KINDS, ears))
    assert await mirror.agrees_with(furnished)
    assert [(kind, event) for kind, event, _ in ears.watches] == [
        ("podgroups.scheduling.k8s.io", "absent"),
        ("provisioningrequests", "absent"),
    ]
    ears.watches.clear()
    await furnished.allow("somebody", GRANT, everywhere=True)
    async with Client(load_connection(str(furnished.control_plane.kubeconfig_for("somebody")))) as client:
        found = await list_all(client, [kind for kind in KINDS if kind.name in {"Pod", "PriorityClass"}], ears)
        assert len(found) == 9
        assert ears.watches[0][:2] == ("priorityclasses", "forbidden")
        with pytest.raises(ApiError, match='cannot list resource "nodes"'):
            await list_all(client, PODS_AND_NODES)
