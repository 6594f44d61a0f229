"""Complaints of users of other schedulers that share GPUs, each with the tests that hold the behavior here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from capcard_sched.model import annotations as keys
from capcard_sched.model.intents import AnnotateNode, Bind
from capcard_sched.testing import EPOCH
from tests.unit.plugins.deviceshare.cluster import VgpuHarness, conf

TESTS = Path(__file__).parents[3]
#: Files by the first word of a test below.
FILES = {
    "own": "unit/plugins/deviceshare/test_complaints.py",
    "plugin": "unit/plugins/deviceshare/test_deviceshare.py",
    "choice": "unit/plugins/deviceshare/test_device_choice.py",
    "request": "unit/plugins/deviceshare/test_vgpu_request.py",
    "reasons": "unit/plugins/deviceshare/test_card_reasons.py",
    "quotas": "unit/plugins/deviceshare/test_share_quotas.py",
    "vector": "vectors/deviceshare.yaml",
    "victims": "vectors/deviceshare-victims.yaml",
    "malformed": "malformed/test_shared_cards.py",
    "locks": "kube/write/test_node_locks.py",
    "server": "e2e/test_shared_cards.py",
}
#: Complaint to the tests that hold the behavior here; a vector by its name.
COMPLAINTS = """
Memory and cores of a placed pod count twice.
  vector a bound pod that comes back from the watch is counted once
The allocated memory in the metrics drifts.
  own test_series_are_those_of_the_cards_and_pods_that_exist
  server test_the_walk_through_of_shared_gpus
The annotations and the node of a bound pod disagree, and are written while the placement is undecided.
  server test_a_binding_that_fails_after_the_choice_leaves_no_annotation_and_the_card_free
  vector a pod whose annotations name another node is booked where it is
  plugin test_the_devices_of_a_bound_pod_cannot_be_edited
A discarded gang leaves annotations that skip the check in the next attempt.
  vector stale annotations of a pod that waits hold nothing and are overwritten
  vector a gang that does not fit holds no card
The policy has no effect on the card, and its level is unclear.
  choice test_a_vector_gives_its_devices_and_its_score
  vector a policy with a weight ranks nodes
  plugin test_arguments_that_do_less_than_they_seem_to_are_warned_of
The spread score is always 0; the second device of a pod on a card is lost.
  choice test_a_taken_card_scores_by_policy
  vector two shares of a pod on one card count twice
A percentage yields 0 units.
  request test_a_percentage_is_of_each_card_and_rounded_down
Whole cards of different sizes never fit one pod.
  own test_whole_cards_of_different_sizes_fit_one_pod
A pod that requests more vGPUs than a node has cards pends without an explanation.
  own test_more_shares_than_cards_have_a_reason_of_their_own
The reasons name neither the missing annotation nor the amount.
  vector equal causes add up in the message
  reasons test_a_refusal_lists_the_figures_of_each_card
  malformed test_a_registration_gives_one_warning_on_its_node
Without the lock allocations run in parallel, with it gangs break.
  server test_a_gang_is_served_in_the_order_of_its_bindings_and_survives_a_restart
  server test_with_the_lock_one_pod_after_the_other_is_bound
The lock is released by the wrong pod, or held for minutes after its pod ends.
  locks test_a_lock_that_is_released_for_another_pod_still_keeps_the_order
  locks test_pods_of_a_node_take_the_lock_in_the_order_of_their_bindings
  locks test_a_lock_of_another_client_is_waited_for_and_given_up_after_five_minutes
A pod with two kinds of devices meets its own lock.
  own test_a_pod_with_two_kinds_of_devices_takes_one_lock
The device plugin takes the wrong one of two pods of the same second.
  vector vgpu time rises with every pod of a node
  vector vgpu time rises over a restart
Nodes without a registration, or with a part of one, crash the scheduler.
  malformed test_a_registration_gives_one_warning_on_its_node
Handshakes throttle clusters of 200 nodes.
  own test_a_node_gets_one_handshake_in_thirty_seconds_however_often_it_changes
Preemption ignores cards.
  victims a pod leaves for the memory of its card
  victims cards are reclaimed for another queue
  victims a tide evicts the pods of the card that helps
The quota of a queue ignores vGPU memory and cores.
  quotas test_a_queue_that_names_shares_limits_them
A card gets more than 100 cores, because pods are known by name.
  vector pods of one name in two namespaces both count
With many cards the node offers no vgpu-memory, and no pod is placed.
  quotas test_pods_on_cards_that_are_not_registered_any_more_limit_nothing
  vector a node with more units than the kubelet accepts is named once
A change of the device plugin's ConfigMap needs a restart.
  own test_another_config_map_is_read_after_a_reload
  own test_a_change_of_the_config_map_is_in_force
"""


@pytest.mark.parametrize("test", [line.strip() for line in COMPLAINTS.splitlines() if line.startswith("  ")])
def test_a_complaint_has_tests(test: str) -> None:
    file, _, name = test.partition(" ")
    where = rf"name: {name}$" if FILES[file].endswith("yaml") else rf"^(async )?def {name}\("
    assert re.search(where, (TESTS / FILES[file]).read_text(), re.MULTILINE)


def _series(h: VgpuHarness) -> dict[tuple[str, str, str], float]:
    return {
        (
            sample.name.removeprefix("vgpu_device_"),
            sample.labels["devID"],
            sample.labels.get("podName", ""),
        ): sample.value
        for sample in h.plugin("deviceshare").metrics()
        if "devID" in sample.labels
    }


def test_series_are_those_of_the_cards_and_pods_that_exist() -> None:
    h = VgpuHarness(conf(SchedulePolicy="binpack"), run=True)
    h.cards("n1", "A:10000", "B:10000")
    h.group("g", min_member=2)
    for name in ("p", "q"):
        h.share(name, 1000, cores=10)
    h.settle()
    for _ in range(3):  # the node changes again and again
        h.cards("n1", "A:10000", "B:10000", labels={"round": str(_)})
        h.settle()
    assert _series(h)["allocated_memory", "B", ""] == 2000

    h.delete_pod("q")
    h.cards("n1", "B:10000")
    h.settle()

    assert _series(h) == {
        ("shared_number", "B", ""): 1,
        ("allocated_memory", "B", ""): 1000,
        ("allocated_cores", "B", ""): 10,
        ("memory_limit", "B", ""): 10000,
        ("memory_allocation_for_a_certain_pod", "B", "p"): 1000,
        ("core_allocation_for_a_certain_pod", "B", "p"): 10,
    }


def test_whole_cards_of_different_sizes_fit_one_pod() -> None:
    h = VgpuHarness()
    h.do(f"cards n1 {' '.join(f'G{index}:{1000 + index}' for index in range(8))}; group g; share p number=8")

    h.step()

    devices = h.bind_annotations["p"][keys.VGPU_IDS].split(":")[:-1]
    assert sorted(devices) == [f"G{index},NVIDIA,{1000 + index},0" for index in range(8)]


def test_more_shares_than_cards_have_a_reason_of_their_own() -> None:
    h = VgpuHarness()
    h.do("cards n1 A:10000 B:10000; group g; share p 10 number=3")

    h.step()

    assert "0/1 nodes are unavailable: 1 hami-vgpuDeviceSharing error (gpu cards)." in h.pod_message("p")


def test_a_node_gets_one_handshake_in_thirty_seconds_however_often_it_changes() -> None:
    h = VgpuHarness()
    written: list[str] = []
    for second in range(30):
        for index in range(200 if not second else 20):
            notes = {keys.NODE_VGPU_HANDSHAKE: f"Reported {second}"}
            h.cards(f"n{index}", f"G{index}:100", annotations=notes)
        intents = h.step(EPOCH + second).intents
        written += [each.name for each in intents if isinstance(each, AnnotateNode)]

    assert len(written) == len(set(written)) == 200


def test_a_pod_with_two_kinds_of_devices_takes_one_lock() -> None:
    h = VgpuHarness(conf(NodeLockEnable=True, ASCEND310PVNPUEnable=True))
    h.do("cards n1 A:1000 resources=huawei.com/npu-core:8; group g; share p 100 limits=huawei.com/npu-core:1")

    (bind,) = (intent for intent in h.step().intents if isinstance(intent, Bind))

    assert bind.node_lock == "hamivgpu"
    assert {keys.VGPU_IDS, keys.NPU_CORE} <= set(bind.annotations)


def _settings(name: str, text: str) -> str:
    data = f"{{device-config.yaml: 'nvidia: {{{text}}}'}}"
    return f"object {name} kind=ConfigMap metadata={{namespace: kube-system}} data={data}"


def test_a_change_of_the_config_map_is_in_force() -> None:
    h = VgpuHarness()
    h.do("cards n1 A:10000 resources=a.b/gpus:10; group g; pod p limits=a.b/gpus:1")
    h.step()
    assert h.bind_annotations == {"p": {}}  # an ordinary resource

    h.do(_settings("volcano-vgpu-device-config", "resourceCountName: a.b/gpus"))
    h.do("group g2; pod g2/q limits=a.b/gpus:1")
    h.step()

    assert h.bind_annotations["q"][keys.VGPU_IDS] == "A,NVIDIA,10000,0:"


def test_another_config_map_is_read_after_a_reload() -> None:
    h = VgpuHarness()
    h.cards("n1", "A:10000")
    h.do(_settings("volcano-vgpu-device-config", "gpuMemoryFactor: 2"))
    h.do(_settings("other", "gpuMemoryFactor: 3"))
    h.step()
    assert h.plugin("deviceshare").types[0].config.factor == 2

    h.reconfigure(conf(KnownGeometriesCMName="other"))
    h.step()
    assert h.plugin("deviceshare").types[0].config.factor == 3

    h.do(_settings("other", "gpuMemoryFactor: 4"))
    h.step()
    assert h.plugin("deviceshare").types[0].config.factor == 4
