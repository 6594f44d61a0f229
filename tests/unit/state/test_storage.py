"""The table of storage objects: what it keeps, what it marks as changed, how long an assumption lives."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from capcard_sched.framework.session.statement import Statement
from capcard_sched.model import deltas
from capcard_sched.model.in_tree_volumes import AttachmentKey
from capcard_sched.model.intents import ClaimBinding
from capcard_sched.model.storage import Decision
from capcard_sched.testing import Harness

Change = Callable[[Harness], None]


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.queue("q")
    harness.node("n1")
    harness.settle()
    return harness


CAPACITY = deltas.ObjectGone("CSIStorageCapacity", "kube-system", "c")
#: Objects and their deletion; the last four are malformed.
OBJECTS: list[tuple[Change, deltas.ObjectGone]] = [
    (lambda h: h.claim("c", storage_class="x"), deltas.ObjectGone("PersistentVolumeClaim", "default", "c")),
    (lambda h: h.volume("v", claim="c"), deltas.ObjectGone("PersistentVolume", "", "v")),
    (lambda h: h.storage_class("s"), deltas.ObjectGone("StorageClass", "", "s")),
    (lambda h: h.csi_node("n1", csi_test=3), deltas.ObjectGone("CSINode", "", "n1")),
    (lambda h: h.csi_driver("d", storage_capacity=True), deltas.ObjectGone("CSIDriver", "", "d")),
    (lambda h: h.csi_driver("d", required=True), deltas.ObjectGone("CSIDriver", "", "d")),
    (lambda h: h.csi_node("n1", csi_test=None), deltas.ObjectGone("CSINode", "", "n1")),
    (lambda h: h.storage_capacity("c", storage_class="s", capacity=1, labels={}), CAPACITY),
    (lambda h: h.attachment("a", node="n1", volume="v"), deltas.ObjectGone("VolumeAttachment", "", "a")),
    (lambda h: h.storage_capacity("c", storage_class="s", capacity="x", labels={}), CAPACITY),
    (lambda h: h.csi_node("n1", csi_test=-3), deltas.ObjectGone("CSINode", "", "n1")),
    (lambda h: h.claim("c", size="x"), deltas.ObjectGone("PersistentVolumeClaim", "default", "c")),
    (lambda h: h.storage_class("s", mode="x"), deltas.ObjectGone("StorageClass", "", "s")),
]


@pytest.mark.parametrize(("add", "gone"), OBJECTS, ids=[gone.kind for _, gone in OBJECTS])
def test_a_change_opens_a_session_and_the_same_again_does_not(h: Harness, add: Change, gone: deltas.Delta) -> None:
    changes: tuple[Change, ...] = (add, lambda h: h.apply(gone))
    for change in changes:
        change(h)
        assert not h.step().idle
        h.settle()
        change(h)
        assert h.step().idle
    storage = h.state.volumes
    for kept in (storage.claims, storage.volumes, storage.volumes_of_class, storage.reserved, storage.classes,
                 storage.limits, storage.drivers, storage.required_drivers,
                 storage.tracked_drivers, storage.capacities, storage.attachments):  # fmt: skip
        assert not kept
    assert not h.state.problems


@pytest.mark.parametrize(
    ("add", "changed"),
    [
        pytest.param(lambda h: h.claim("c", storage_class="x"), "default/c", id="claim"),
        pytest.param(lambda h: h.volume("v", claim="c"), "default/c", id="volume of a claim"),
        pytest.param(lambda h: h.volume("v"), "PersistentVolume v", id="volume without a claim"),
    ],
)
def test_a_change_names_the_claim_whose_pods_it_concerns(h: Harness, add: Change, changed: str) -> None:
    add(h)
    h.step()
    assert h.last_session.changed.volumes == {changed}


def test_a_volume_and_a_class_that_change_together_are_another_generation(h: Harness) -> None:
    before = h.state.volumes.generation
    h.volume("v")
    h.storage_class("s")
    h.step()
    assert h.state.volumes.generation != before


def test_a_volume_moves_between_classes_and_claims(h: Harness) -> None:
    h.volume("v", storage_class="a", claim="one")
    h.volume("v", storage_class="b", claim="two")
    h.step()
    storage = h.state.volumes
    assert list(storage.volumes_of_class) == ["b"]
    assert storage.reserved == {"default/two": {"v"}}
    assert storage.volumes["v"].version == 2


def test_an_attachment_is_counted_in_either_order_of_deltas(h: Harness) -> None:
    h.attachment("early", node="n1", volume="v")
    h.settle()
    assert list(h.state.volumes.attached("n1")) == []
    h.volume("v", driver="csi.test", handle="7")
    assert not h.step().idle
    assert list(h.state.volumes.attached("n1")) == [AttachmentKey("csi.test", "7")]
    assert "n1" in h.last_session.changed.nodes


def test_an_attachment_that_moves_is_on_one_node(h: Harness) -> None:
    h.volume("v", driver="csi.test")
    h.attachment("a", node="n1", volume="v")
    h.attachment("a", node="n2", volume="v")
    h.step()
    assert h.state.volumes.attachments == {"n2": {"a": "v"}}


def test_a_changed_volume_concerns_its_node_until_its_last_attachment_is_gone(h: Harness) -> None:
    h.volume("v")
    for name in ("a", "b"):
        h.attachment(name, node="n1", volume="v")
    for name, concerned in (("a", {"n1"}), ("b", set())):
        h.apply(deltas.ObjectGone("VolumeAttachment", "", name))
        h.settle()
        h.volume("v", claim=f"after-{name}")
        h.step()
        assert h.last_session.changed.nodes == concerned


def test_an_assumption_stands_while_one_of_its_pods_is_being_bound(h: Harness) -> None:
    h.group("g", min_member=2)
    h.volume("v", storage_class="s", modes=["ReadWriteMany"])
    h.storage_class("s", provisioner="kubernetes.io/no-provisioner")
    h.claim("c", storage_class="s", modes=["ReadWriteMany"])
    claims = [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]
    for name in ("p-0", "p-1"):
        h.pod(name, volumes=claims)
    session = h.session()
    tasks = [h.task("p-0"), h.task("p-1")]
    statement = Statement(session)
    for task in tasks:
        statement.allocate(h.job("g"), [task], [session.nodes.by_name["n1"]])
    statement.commit()
    assumed = h.state.volumes.assumed
    assert assumed["default/c"].decision == Decision("v", "n1")
    h.apply(deltas.BindFailed("default", "p-0", tasks[0].uid, "refused", retry_after=60.0))
    h.step()
    assert assumed["default/c"].holders == {tasks[1].uid}
    h.delete_pod("p-1")
    h.step()
    assert not assumed


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda h: h.delete_claim("c"), id="the claim is gone"),
        pytest.param(lambda h: h.claim("c", storage_class="s", uid="another"), id="another claim of the name"),
        pytest.param(lambda h: h.claim("c", storage_class="s", volume="v"), id="the claim is bound"),
    ],
)
def test_an_assumption_ends_with_its_object(h: Harness, end: Change) -> None:
    h.claim("c", storage_class="s")
    h.group("g")
    h.pod("p")
    h.settle()
    h.state.assume_volumes(h.task("p"), "n1", [ClaimBinding("c", "default-c-uid", "v")])
    assert set(h.state.volumes.assumed) == {"default/c"}
    end(h)
    h.step()
    assert not h.state.volumes.assumed
