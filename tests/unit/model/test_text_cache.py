"""Caches of results for texts of users: bounded in bytes, and used for every function of such texts."""

from __future__ import annotations

import pytest

from capcard_sched.model.text_cache import length_of, text_cache


@pytest.mark.parametrize(
    "value, length",
    [("abc", 3), (b"abc", 3), (("a", "bc"), 5), ((("a", 1), ("b", "c")), 9), (1, 0), (None, 0), ((), 0)],
)
def test_the_length_of_an_argument_is_that_of_its_texts_and_items(value: object, length: int) -> None:
    assert length_of(value) == length


@pytest.mark.parametrize(
    "longer, computed", [(0, ["a", "b" * 9, "b" * 9, "c" * 9, "b" * 9]), (1, ["a", "b" * 9, "c" * 9, "b" * 9])]
)
def test_results_for_long_texts_are_not_kept_or_few_of_them_are(longer: int, computed: list[str]) -> None:
    calls: list[str] = []

    @text_cache(10, short=8, longer=longer)
    def upper(text: str) -> str:
        calls.append(text)
        return text.upper()

    for text in ("a", "a", "b" * 9, "b" * 9, "c" * 9, "b" * 9, "a"):
        assert upper(text) == text.upper()
    assert calls == computed
