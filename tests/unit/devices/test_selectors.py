"""The attributes that selectors of devices may read: equal nodes may differ in all others."""

from __future__ import annotations

import pytest

from capcard_sched.devices.selectors import compile_selector, read_attributes

_D = 'device.attributes["d"]'


@pytest.mark.parametrize(
    "expression, expected",
    [
        ('device.driver == "d"', set()),
        (f'{_D}.size == 1 && {_D}.numa == 0 || {_D}["x"] == "y"', {"size", "numa", "x"}),
        (f'{_D}.?size.orValue(1) == 1 && {_D}[?"x"].hasValue()', {"size", "x"}),
        (f'has({_D}.size) && "x" in {_D}', {"size", "x"}),
        ("device.attributes.d.size == 1", {"size"}),
        (f"[1, 2].exists(each, {_D}.size == each) ? {_D}.a : {_D}.b", {"size", "a", "b"}),
        ('device.capacity["d"].memory.isGreaterThan(quantity("1Gi")) && !device.allowMultipleAllocations', set()),
        (f'{_D}.version.isGreaterThan(semver("1.0.0"))', {"version"}),
        # unknown ones: all
        (f"cel.bind(a, {_D}, a.size == 1)", None),
        (f'{_D}.exists(key, key == "size")', None),
        (f"{_D}[device.driver] == 1", None),
        ("device.attributes[device.driver].size == 1", None),
        (f"device.driver in {_D}", None),
        ('"d" in device.attributes', None),
        ('[device].exists(each, each.attributes["d"].size == 1)', None),
        ("[1].exists(device, device == 1)", None),
    ],
)  # fmt: skip
def test_attributes_of_a_selector(expression: str, expected: set[str] | None) -> None:
    compile_selector(expression)
    assert read_attributes(expression) == expected
