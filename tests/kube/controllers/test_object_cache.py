"""The cache of the controllers: watch events, answers to writes, and what becomes of late ones."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import pytest

from capcard_sched.controllers.objects import JsonObject, Key
from capcard_sched.kube.controllers.object_cache import NotFetchedError, ObjectCache
from capcard_sched.kube.controllers.records import BUILT_IN, RecordChanged
from capcard_sched.model.deltas import ObjectGone
from tests.clock import Clock
from tests.reachable import reachable

POD = Key("Pod", "default", "p")


class CacheBench:
    """A cache with its changes recorded."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.changes: list[tuple[str, str, str]] = []
        self.cache = ObjectCache(self.clock, self._changed)

    def _changed(self, kind: str, old: JsonObject | None, new: JsonObject | None) -> None:
        before, after = (obj["metadata"]["resourceVersion"] if obj is not None else "" for obj in (old, new))
        self.changes.append((kind, before, after))

    def watch(self, change: RecordChanged | ObjectGone) -> None:
        self.cache.apply(change)

    def answer(self, change: RecordChanged) -> None:
        self.cache.apply(change, confirmed=False)

    def held(self) -> int:
        """Bytes of the objects that the cache keeps."""
        return sum(sys.getsizeof(each) for _, each in reachable(self.cache) if isinstance(each, bytes))

    def version(self, key: Key = POD) -> str:
        found = self.cache.get(*key)
        return "" if found is None else str(found["metadata"]["resourceVersion"])


def changed(version: int, *, uid: str = "u", kind: str = "Pod", name: str = "p", **body: Any) -> RecordChanged:
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": uid,
        "resourceVersion": str(version),
        **body.pop("metadata", {}),
    }
    found = BUILT_IN.decode_change(kind, json.dumps({"metadata": metadata, **body}).encode())
    assert found is not None
    return found


def gone(uid: str = "u", kind: str = "Pod", name: str = "p") -> ObjectGone:
    return ObjectGone(kind, "default", name, uid)


def test_a_response_is_visible_at_once_and_its_watch_event_changes_nothing() -> None:
    bench = CacheBench()
    bench.answer(changed(5))
    assert bench.version() == "5"
    bench.watch(changed(5))
    bench.watch(changed(4))
    assert bench.changes == [("Pod", "", "5")]
    bench.clock.now += 60
    assert bench.cache.unconfirmed() == []


def test_a_late_response_restores_no_deleted_object() -> None:
    bench = CacheBench()
    bench.watch(changed(5))
    bench.watch(gone())
    bench.answer(changed(6))
    bench.answer(changed(4))
    assert bench.version() == ""


def test_an_object_of_the_same_name_replaces_a_deleted_one_in_either_order_of_events() -> None:
    bench = CacheBench()
    bench.watch(changed(5))
    bench.answer(changed(8, uid="new"))
    bench.watch(gone())
    assert bench.version() == "8"
    bench.watch(changed(6))
    assert bench.version() == "8", "an event of the old object"


def test_a_deletion_of_ours_counts_before_the_watch_shows_it() -> None:
    bench = CacheBench()
    bench.watch(changed(5))
    bench.cache.deleted(POD, "other", "2026-01-01T00:00:00Z")
    assert "deletionTimestamp" not in (bench.cache.get(*POD) or {})["metadata"]
    bench.cache.deleted(POD, "u", "2026-01-01T00:00:00Z")
    assert (bench.cache.get(*POD) or {})["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:00Z"
    bench.watch(changed(6, status={"phase": "Running"}))
    assert (bench.cache.get(*POD) or {})["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:00Z"


def test_an_object_that_the_watch_never_showed_is_read_again() -> None:
    bench = CacheBench()
    bench.answer(changed(5))
    bench.clock.now += 29
    assert bench.cache.unconfirmed() == []
    bench.clock.now += 2
    assert bench.cache.unconfirmed() == [POD]
    bench.cache.confirm(POD, None)
    assert (bench.version(), bench.cache.unconfirmed()) == ("", [])


def test_owners_commands_and_phases_are_indexed() -> None:
    bench = CacheBench()
    owner = {"apiVersion": "v1", "kind": "X", "metadata": {"name": "x", "namespace": "default", "uid": "owner"}}
    owners = {"ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "owner", "controller": True}]}
    bench.watch(changed(1, metadata=owners))
    assert [pod["metadata"]["name"] for pod in bench.cache.owned(owner, "Pod")] == ["p"]
    assert bench.cache.owned(owner, "PodGroup") == []
    bench.watch(changed(2))
    assert bench.cache.owned(owner, "Pod") == []

    target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j", "uid": "u"}
    for name, stamp in (("b", "2026-01-01T00:00:00Z"), ("a", "2026-01-01T00:00:01Z")):
        metadata = {"creationTimestamp": stamp}
        bench.watch(
            changed(3, uid=name, kind="Command", name=name, action="AbortJob", target=target, metadata=metadata)
        )
    job = Key("Job", "default", "j")
    assert [command["metadata"]["name"] for command in bench.cache.targeting(job)] == ["b", "a"]
    bench.cache.deleted(Key("Command", "default", "b"), "b", "2026-01-01T00:00:00Z")
    bench.watch(gone("a", "Command", "a"))
    assert bench.cache.targeting(job) == []

    for version, name in ((9, "z"), (10, "m"), (11, "c")):  # of one second
        metadata = {"creationTimestamp": "2026-01-01T00:00:02Z"}
        bench.watch(
            changed(version, uid=name, kind="Command", name=name, action="AbortJob", target=target, metadata=metadata)
        )
    assert [command["metadata"]["name"] for command in bench.cache.targeting(job)] == ["z", "m", "c"]

    group: dict[str, Any] = {"kind": "PodGroup", "spec": {"queue": "q"}}
    bench.watch(changed(4, uid="g", name="g", **group, status={"phase": "Running"}))
    bench.watch(changed(5, uid="h", name="h", **group))
    assert dict(bench.cache.group_phases("q")) == {"Running": 1, "Pending": 1}
    bench.watch(gone("g", "PodGroup", "g"))
    bench.watch(gone("h", "PodGroup", "h"))
    assert dict(bench.cache.group_phases("q")) == {}


def test_a_cache_that_is_not_observed_counts_phases_and_finds_commands() -> None:
    bench = CacheBench()
    bench.cache.observed = False
    bench.watch(changed(4, uid="g", kind="PodGroup", name="g", spec={"queue": "q"}))
    target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j"}
    bench.watch(changed(5, uid="c", kind="Command", name="c", action="AbortJob", target=target))
    bench.watch(changed(6))
    assert dict(bench.cache.group_phases("q")) == {"Pending": 1}
    assert [each["action"] for each in bench.cache.targeting(Key("Job", "default", "j"))] == ["AbortJob"]
    assert bench.changes == []
    bench.cache.observed = True
    bench.watch(changed(7))
    assert bench.changes == [("Pod", "6", "7")]


def test_an_owner_is_read_on_demand_and_again_after_a_minute() -> None:
    bench = CacheBench()
    key = Key("Deployment", "default", "d")
    with pytest.raises(NotFetchedError) as missing:
        bench.cache.get(*key)
    assert missing.value.key == key
    bench.cache.fetched(key, None)
    assert bench.cache.get(*key) is None
    bench.clock.now += 61
    with pytest.raises(NotFetchedError):
        bench.cache.get(*key)


def test_a_pod_is_trimmed_to_the_fields_that_controllers_read() -> None:
    container = {"name": "main", "image": "x", "env": [{"name": "A", "value": "b" * 1000}], "resources": {"limits": {}}}
    spec = {"schedulerName": "ours", "nodeName": "n", "containers": [container]}  # a binding changes nothing
    notes = {"volcano.sh/task-spec": "w", "example.com/long": "x" * 1000}
    plain = changed(1, metadata={"annotations": notes}, spec=spec, status={"phase": "Running", "podIP": "1.1.1.1"})
    assert len(plain.data) < 400
    assert b"nodeName" not in plain.data
    assert b"resources" in plain.data, "its PodGroup is still to be created"
    grouped = {**notes, "scheduling.k8s.io/group-name": "g"}
    assert b"resources" not in changed(1, metadata={"annotations": grouped}, spec=spec).data


def test_a_grouped_pod_keeps_its_requests_where_the_group_follows_the_owner() -> None:
    container = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
    metadata = {"annotations": {"scheduling.k8s.io/group-name": "g"}}
    followed = {("apps/v1", "ReplicaSet"): True, ("apps/v1", "StatefulSet"): True, ("batch/v1", "Job"): False}
    for (version, kind), kept in {**followed, ("example.com/v1", "StatefulSet"): False}.items():
        owner = {"apiVersion": version, "kind": kind, "name": "o", "uid": "o", "controller": True}
        pod = changed(1, metadata={**metadata, "ownerReferences": [owner]}, spec={"containers": [container]})
        assert (b"requests" in pod.data) is kept, kind


def test_owners_that_were_read_are_kept_while_they_are_believed_and_within_a_bound_of_bytes() -> None:
    bench = CacheBench()
    size = 2**20

    def read(number: int, size: int) -> Key:
        key = Key("Deployment", "default", f"owner-{number}")
        bench.cache.fetched(key, {"metadata": {"annotations": {"a": "x" * size}}})
        assert bench.cache.get(*key) == {"metadata": {"annotations": {"a": "x" * size}}}
        return key

    def kept(keys: list[Key]) -> int:
        count = 0
        for key in keys:
            with contextlib.suppress(NotFetchedError):
                count += bench.cache.get(*key) is not None
        return count

    small = [read(number, 100) for number in range(1000)]
    assert kept(small) == 1000
    large = [read(number, size) for number in range(1000, 1200)]
    assert kept(large) == 64, "the latest ones, which passes read next"
    assert bench.held() < 66 * size
    bench.clock.now += 61
    last = read(2000, 100)
    assert (kept([*small, *large]), kept([last])) == (0, 1)
    assert bench.held() < size
