"""Groups of pods by labels: the rows follow pods that come one by one and nodes that are counted anew."""

from capcard_sched.framework.toolkit.label_groups import LabelGroups
from capcard_sched.testing import Harness


def test_a_node_that_is_counted_anew_has_the_new_amounts_whatever_came_before() -> None:
    h = Harness()
    h.node("n")
    node = h.session().nodes.by_name["n"]
    groups = LabelGroups()
    group = groups.of("default", {"app": "a"}, {})
    for pods, live in ((1, 1), (2, 1), (-1, -1), (-2, -1)):
        groups.change(node, group, pods, live)
    assert (group.rows, group.live) == ({}, {})
    groups.replace("n", node, {group: (2, 1)})
    assert (group.rows, group.live) == ({node.row: 2}, {node.row: 1})
    groups.change(node, group, 1, 1)
    groups.replace("n", node, {})
    assert (group.rows, group.live) == ({}, {})
