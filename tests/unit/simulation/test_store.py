"""The store behaves as an API server does: metadata, merge patches, deletion, owners."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.simulation.clock import SECOND, VirtualClock
from capcard_sched.simulation.store import AlreadyExistsError, Change, NotFoundError, Store, merged


def pod(name: str = "a", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {}, **fields}


def store() -> Store:
    return Store(VirtualClock())


def test_a_created_object_gets_the_fields_that_an_api_server_sets() -> None:
    found = store()
    found.clock.now = 90 * SECOND
    metadata = found.create("Pod", pod())["metadata"]
    assert metadata == {
        "name": "a",
        "namespace": "default",
        "uid": "00000001-0000-4000-8000-000000000001",
        "creationTimestamp": "2026-01-01T00:01:30Z",
        "resourceVersion": "1",
    }


def test_given_uids_and_times_stand_and_cluster_scope_drops_the_namespace() -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u", "namespace": "x"}}
    assert store().create("Node", node)["metadata"] == {
        "name": "n",
        "uid": "u",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "resourceVersion": "1",
    }


def test_names_are_unique_per_kind_and_namespace() -> None:
    found = store()
    found.create("Pod", pod())
    other = pod()
    other["metadata"]["namespace"] = "other"
    found.create("Pod", other)
    with pytest.raises(AlreadyExistsError, match="Pod default/a already exists"):
        found.create("Pod", pod())


def test_a_patch_that_changes_nothing_is_no_write() -> None:
    found = store()
    changes: list[Change] = []
    found.create("Pod", pod(status={"phase": "Running", "conditions": [{"type": "Ready"}]}))
    found.observe(changes.append)
    before = found.get("Pod", "default", "a")
    found.patch("Pod", "default", "a", {"status": {"conditions": [{"type": "Ready"}], "gone": None}, "spec": {}})
    assert found.get("Pod", "default", "a") is before
    assert changes == []


def test_removing_a_defaulted_field_changes_nothing() -> None:
    found = store()
    found.admit = lambda _, obj: merged(obj, {"spec": {"replicas": obj["spec"].get("replicas", 1)}})
    first = found.create("Pod", pod())
    assert found.patch("Pod", "default", "a", {"spec": {"replicas": None}}, by_user=True) is first
    changed = found.patch("Pod", "default", "a", {"spec": {"replicas": None, "other": 2}}, by_user=True)
    assert changed["spec"] == {"replicas": 1, "other": 2}


def test_observers_see_both_sides_of_a_change_and_old_values_stay_as_they_were() -> None:
    found = store()
    changes: list[Change] = []
    found.observe(changes.append)
    first = found.create("Pod", pod())
    second = found.patch("Pod", "default", "a", {"spec": {"nodeName": "n"}})
    found.remove("Pod", "default", "a")
    assert [change.verb for change in changes] == ["added", "modified", "removed"]
    assert changes[1].old is first
    assert changes[1].new is second
    assert first["spec"] == {}
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])


@pytest.mark.parametrize("verb", ["patch", "delete", "remove"])
def test_writes_to_missing_objects_fail(verb: str) -> None:
    arguments: tuple[Any, ...] = ({},) if verb == "patch" else ()
    with pytest.raises(NotFoundError, match="Pod default/a does not exist"):
        getattr(store(), verb)("Pod", "default", "a", *arguments)


@pytest.mark.parametrize(
    "spec, status, annotations, remains",
    [
        pytest.param({"nodeName": "n"}, {"phase": "Running"}, {}, "2026-01-01T00:00:30Z", id="30 s by default"),
        pytest.param(
            {"nodeName": "n", "terminationGracePeriodSeconds": 5}, {}, {}, "2026-01-01T00:00:05Z", id="its own period"
        ),
        pytest.param({"nodeName": "n"}, {}, {"grace": "2m"}, "2026-01-01T00:02:00Z", id="the annotation wins"),
        pytest.param({"nodeName": "n"}, {}, {"grace": "0s"}, None, id="no grace"),
        pytest.param({}, {}, {}, None, id="without a node"),
        pytest.param({"nodeName": "n"}, {"phase": "Succeeded"}, {}, None, id="ended"),
    ],
)
def test_a_deleted_pod_terminates_for_its_grace_period(
    spec: dict[str, Any], status: dict[str, Any], annotations: dict[str, str], remains: str | None
) -> None:
    found = store()
    obj = pod(spec=spec, status=status)
    obj["metadata"]["annotations"] = {f"simulation.capcard-sched.io/{key}": value for key, value in annotations.items()}
    found.create("Pod", obj)
    found.delete("Pod", "default", "a")
    left = found.get("Pod", "default", "a")
    assert (left["metadata"]["deletionTimestamp"] if left else None) == remains


def test_owned_objects_follow_their_references() -> None:
    found = store()
    obj = pod()
    obj["metadata"]["ownerReferences"] = [{"uid": "one"}]
    found.create("Pod", obj)
    found.patch("Pod", "default", "a", {"metadata": {"ownerReferences": [{"uid": "two"}]}})
    assert found.dependents("one") == ()
    assert [one["metadata"]["name"] for one in found.dependents("two")] == ["a"]
    found.remove("Pod", "default", "a")
    assert found.dependents("two") == ()
    assert found.existed("Pod", "default", "a")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECT = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


def reference(target: Any, patch: Any) -> Any:
    """RFC 7386, as its text has it."""
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = reference(target.get(key), value)
    return target


@given(target=OBJECT, patch=OBJECT)
def test_merge_patches_follow_rfc_7386_and_leave_the_target(target: dict[str, Any], patch: dict[str, Any]) -> None:
    before = repr(target)
    result = merged(target, patch)
    assert result == reference(target, patch)
    assert repr(target) == before
    assert merged(result, patch) is result
