"""Bytes of lists and watches to objects: what is wrong with one stays with that one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from capcard_sched.kube.decode import DecodeFailure, KindDecoder, UndecodableObject, WatchEvent, describe
from capcard_sched.kube.kinds import KINDS, WatchedKind

POD, QUEUE, CLASS = (next(kind for kind in KINDS if kind.name == name) for name in ("Pod", "Queue", "PriorityClass"))


def line(type: str, obj: Any) -> bytes:
    return msgspec.json.encode({"type": type, "object": obj}) + b"\n"


def meta(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "uid": f"uid-{name}", "resourceVersion": "7", **more}


GOOD = {"metadata": meta("good"), "spec": {"weight": 2}}
BAD = {"metadata": meta("bad", labels={"a": 1}), "spec": {"weight": 2}}


def test_events_in_order() -> None:
    events = KindDecoder(QUEUE).events(line("ADDED", GOOD) + line("DELETED", GOOD))
    assert [(each.type, each.object.metadata.name, each.object.spec.weight) for each in events] == [  # type: ignore[union-attr]
        ("ADDED", "good", 2),
        ("DELETED", "good", 2),
    ]


def test_an_object_of_wrong_types_leaves_the_others_alone() -> None:
    weight = {"metadata": meta("heavy"), "spec": {"weight": "very"}}
    first, second, third, fourth = KindDecoder(QUEUE).events(
        line("ADDED", GOOD) + line("MODIFIED", BAD) + line("ADDED", weight) + line("ADDED", GOOD)
    )
    assert isinstance(first, WatchEvent)
    assert isinstance(second, UndecodableObject)
    assert (second.type, second.metadata.name, second.metadata.uid, second.metadata.resource_version) == (
        "MODIFIED",
        "bad",
        "uid-bad",
        "7",
    )
    assert second.problem == "metadata.labels[...]: Expected `str`, got `int`"
    assert isinstance(third, UndecodableObject)
    assert third.problem == "spec.weight: Expected `int | null`, got `str`"
    assert first == fourth


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


def test_empty_lines_are_skipped() -> None:
    assert len(KindDecoder(QUEUE).events(b"\n" + line("ADDED", GOOD) + b"\n")) == 1


def test_a_page_with_a_bad_item_keeps_the_others() -> None:
    body = msgspec.json.encode({"metadata": {"resourceVersion": "50", "continue": "more"}, "items": [GOOD, BAD, GOOD]})
    page = KindDecoder(QUEUE).page(body)
    assert (page.version, page.following) == ("50", "more")
    assert [isinstance(item, UndecodableObject) for item in page.items] == [False, True, False]


@pytest.mark.parametrize("body", [b'{"metadata":{"resourceVersion":"5"},"items":null}', b'{"metadata":{}}'])
def test_a_page_without_items_is_empty(body: bytes) -> None:
    page = KindDecoder(QUEUE).page(body)
    assert (page.items, page.following) == ([], "")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"items":{}}', b'{"items":["x"]}'])
def test_a_response_that_is_no_list_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        KindDecoder(QUEUE).page(body)


@pytest.mark.parametrize(
    "text, shown",
    [
        ("Expected `int`, got `str` - at `$.spec.weight`", "spec.weight: Expected `int`, got `str`"),
        ("Expected `int`, got `str` - at `key` in `$.data`", "data, a key: Expected `int`, got `str`"),
        ("Expected `object`, got `int`", "Expected `object`, got `int`"),
        ("Expected `str`, got `int` - at `$[0]`", "[0]: Expected `str`, got `int`"),
    ],
)
def test_problems_name_the_field_first(text: str, shown: str) -> None:
    assert describe(msgspec.ValidationError(text)) == shown


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
