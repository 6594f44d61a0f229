"""The accepted form of an argument, in words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from capcard_sched.framework.api.arguments import accepted_form

FORMS: list[tuple[Any, str]] = [
    (bool, "true or false"),
    (str, "a string"),
    (int, "an integer"),
    (Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)], "an integer >= 0 and <= 2147483647"),
    (Annotated[float, msgspec.Meta(gt=0.1)], "a number > 0.1"),
    (Annotated[float, msgspec.Meta(ge=0, le=1)], "a number >= 0 and <= 1"),
    (Literal["b", "a"], "one of a, b"),
    (dict[str, Annotated[int, msgspec.Meta(ge=1)]], "a map of strings to an integer >= 1"),
    (tuple[str, ...] | None, "a list, each entry a string"),
]


@pytest.mark.parametrize("type, words", FORMS, ids=[words for _, words in FORMS])
def test_the_accepted_form_is_written_in_words_and_whole_numbers(type: Any, words: str) -> None:
    assert accepted_form(type) == words
