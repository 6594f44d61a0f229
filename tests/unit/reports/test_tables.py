"""Tables as text, and the texts of evictions in them."""

from __future__ import annotations

import pytest

from capcard_sched.reports.evictions import preemptor_text
from capcard_sched.reports.tables import TextTable, titled


def test_numbers_are_right_aligned_and_lines_have_no_blanks_at_their_ends() -> None:
    assert titled("Cards", ("CARD", "FREE", "NOTE"), [("A", "10", ""), ("H200", "2", "x")], {"CARD", "NOTE"}) == [
        "Cards",
        "CARD  FREE  NOTE",
        "A       10",
        "H200     2  x",
    ]


def test_names_are_never_cut_and_characters_of_two_columns_count_twice() -> None:
    table = TextTable(("NAME", "N"), (1,))
    name = "x" * 300
    assert table.lines([(name, "1"), ("\u5361", "2")]) == [
        "NAME" + " " * 298 + "N",
        f"{name}  1",
        "\u5361" + " " * 300 + "2",
    ]
    assert table.lines([("later", "3")]) == ["later" + " " * 297 + "3"], "rows that follow keep the widths"


def test_control_characters_of_cells_are_escaped() -> None:
    assert TextTable(("NAME",)).lines([("a\x1b[31m\nb",)]) == ["NAME", "a\\x1b[31m\\x0ab"]


@pytest.mark.parametrize(
    "message, text",
    [
        (
            "reclaim: NVIDIA-H200: 2 on node h200-2 for default/chat-j7jw4-x of queue serving",
            "serving/chat reclaimed 2 NVIDIA-H200",
        ),
        ("preempt: A: 1, cpu: 8 on node n for ml/other of queue q", "q/other preempted 1 A, 8 cpu"),
        ("preempt: a place on node n for ml/other of queue q", "q/other preempted a place"),
        ("the descheduler", "the descheduler"),
    ],
)
def test_an_eviction_names_queue_and_workload_of_the_preemptor(message: str, text: str) -> None:
    assert preemptor_text(message, {"default/chat-j7jw4-x": "chat"}) == text
