"""The merge patch between two objects makes the second of the first, and is empty between equal ones."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.controllers.objects import merge_diff
from capcard_sched.simulation.store import merged

_LEAVES = st.one_of(st.booleans(), st.integers(-2, 2), st.sampled_from(["", "a", "b"]), st.lists(st.integers(0, 2)))
_OBJECTS = st.dictionaries(
    st.sampled_from("xyz"),
    st.recursive(_LEAVES, lambda inner: st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)),
    max_size=3,
)


@given(_OBJECTS, _OBJECTS)
def test_the_patch_makes_the_second_object_of_the_first(old: dict[str, Any], new: dict[str, Any]) -> None:
    result = merged(old, merge_diff(old, new))
    assert result == new
    assert merge_diff(new, new) == {}
