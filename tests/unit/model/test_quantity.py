"""Quantities: every form Kubernetes accepts, exactly; every other one refused with words."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils import parse_quantity as reference_parse

from capcard_sched.model.quantity import (
    MAX_AMOUNT,
    QuantityError,
    amounts,
    base_amount,
    format_amount,
    format_binary,
    format_milli,
    format_units,
    milli,
    parse_quantity,
    units,
)


@pytest.mark.parametrize(
    "raw, thousandths, whole",
    [
        # plain and decimal
        ("0", 0, 0),
        ("2", 2000, 2),
        ("007", 7000, 7),
        ("1.5", 1500, 2),
        ("1.", 1000, 1),
        (".5", 500, 1),
        ("0.0", 0, 0),
        # signs
        ("+2", 2000, 2),
        ("-2", -2000, -2),
        ("-0", 0, 0),
        ("-.5", -500, -1),
        # suffixes
        ("1000000n", 1, 1),
        ("1000001n", 2, 1),
        ("2500u", 3, 1),
        ("1500m", 1500, 2),
        ("1k", 1_000_000, 1000),
        ("1P", MAX_AMOUNT, 10**15),
        ("1.5Gi", 1536 * 1024**2 * 1000, 1536 * 1024**2),
        ("3Pi", MAX_AMOUNT, 3 * 1024**5),
        ("0.3Ki", 307_200, 308),
        # exponents
        ("1e3", 1_000_000, 1000),
        ("1E3", 1_000_000, 1000),
        ("1e+3", 1_000_000, 1000),
        ("1E-3", 1, 1),
        ("12.34e1", 123_400, 124),
        ("1e0003", 1_000_000, 1000),
        ("0e400", 0, 0),
        # rounding is away from zero
        ("-1.5", -1500, -2),
        ("1e-9", 1, 1),
        ("-1e-9", -1, -1),
        ("0.0001", 1, 1),
        ("1e-400", 1, 1),
        # the cap
        ("9223372036854775807", MAX_AMOUNT, MAX_AMOUNT),
        ("9223372036854775808", MAX_AMOUNT, MAX_AMOUNT),
        ("-9223372036854775809", -MAX_AMOUNT, -MAX_AMOUNT),
        ("9007199254740991", MAX_AMOUNT, 9007199254740991),
        ("8Ei", MAX_AMOUNT, MAX_AMOUNT),
        ("1e400", MAX_AMOUNT, MAX_AMOUNT),
        # bare numbers as YAML parses them
        (2, 2000, 2),
        (-3, -3000, -3),
        (0.1, 100, 1),
        (1.5, 1500, 2),
        (1e-07, 1, 1),
        (1e22, MAX_AMOUNT, MAX_AMOUNT),
        (10**30, MAX_AMOUNT, MAX_AMOUNT),
    ],
)
def test_quantities_are_read_exactly_rounded_away_from_zero_and_capped(
    raw: str | float, thousandths: int, whole: int
) -> None:
    assert (milli(raw), units(raw)) == (thousandths, whole)


@pytest.mark.parametrize("number", [0, 1, 7, 250])
def test_a_suffix_is_a_factor(number: int) -> None:
    decimal = [parse_quantity(f"{number}{suffix}") for suffix in ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")]
    assert decimal == [number * Fraction(1000) ** power for power in range(-3, 7)]
    binary = [parse_quantity(f"{number}{suffix}") for suffix in ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")]
    assert binary == [number * 1024**power for power in range(1, 7)]


FORM = "expected a number with an optional suffix"
MALFORMED = [
    ("", f"'' is not a quantity: {FORM}"),
    (" ", f"' ' is not a quantity: {FORM}"),
    (" 1", f"' 1' is not a quantity: {FORM}"),
    ("1 ", "'1 ' is not a quantity: unknown suffix ' '"),
    ("1\n", "is not a quantity: unknown suffix"),
    (".", f"'.' is not a quantity: {FORM}"),
    ("-", f"'-' is not a quantity: {FORM}"),
    ("+-1", f"'+-1' is not a quantity: {FORM}"),
    ("--1", f"'--1' is not a quantity: {FORM}"),
    ("Gi", f"'Gi' is not a quantity: {FORM}"),
    ("e3", f"'e3' is not a quantity: {FORM}"),
    ("abc", f"'abc' is not a quantity: {FORM}"),
    ("nan", f"'nan' is not a quantity: {FORM}"),
    ("Infinity", f"'Infinity' is not a quantity: {FORM}"),
    ("٣", f"'٣' is not a quantity: {FORM}"),
    ("1K", "'1K' is not a quantity: unknown suffix 'K'; known are n, u, m, k, M, G, T, P, E, Ki"),
    ("1ki", "'1ki' is not a quantity: unknown suffix 'ki'"),
    ("1GB", "'1GB' is not a quantity: unknown suffix 'GB'"),
    ("1gi", "'1gi' is not a quantity: unknown suffix 'gi'"),
    ("1mi", "'1mi' is not a quantity: unknown suffix 'mi'"),
    ("1e", "'1e' is not a quantity: unknown suffix 'e'"),
    ("1e+", "'1e+' is not a quantity: unknown suffix 'e+'"),
    ("1e1.5", "'1e1.5' is not a quantity: unknown suffix 'e1.5'"),
    ("1e3Ki", "'1e3Ki' is not a quantity: unknown suffix 'e3Ki'"),
    ("1.2.3", "'1.2.3' is not a quantity: unknown suffix '.3'"),
    ("1,5", "'1,5' is not a quantity: unknown suffix ',5'"),
    ("1_000", "'1_000' is not a quantity: unknown suffix '_000'"),
    ("0x10", "'0x10' is not a quantity: unknown suffix 'x10'"),
    ("4 Gi", "'4 Gi' is not a quantity: unknown suffix ' Gi'"),
    ("1" + "e" * 500, "is not a quantity: unknown suffix"),
    (float("nan"), f"'nan' is not a quantity: {FORM}"),
    (float("-inf"), f"'-inf' is not a quantity: {FORM}"),
    (True, "true is not a quantity: expected text or a number"),
    (None, "null is not a quantity: expected text or a number"),
    (["1"], "is not a quantity: expected text or a number"),
    ({}, "a mapping is not a quantity: expected text or a number"),
    (Decimal(1), "is not a quantity: expected text or a number"),
]


@pytest.mark.parametrize("raw, message", MALFORMED, ids=[repr(raw)[:24] for raw, _ in MALFORMED])
def test_everything_else_is_refused_with_a_message(raw: object, message: str) -> None:
    for read in (milli, units, parse_quantity):
        with pytest.raises(QuantityError) as caught:
            read(cast(Any, raw))
        assert message in str(caught.value)
        assert len(str(caught.value)) < 400


@pytest.mark.timeout(20)  # computing any of them would take minutes and gigabytes
@pytest.mark.parametrize(
    "raw, thousandths, whole",
    [
        pytest.param("1e401", MAX_AMOUNT, MAX_AMOUNT, id="large exponent"),
        pytest.param("-1E+999999999", -MAX_AMOUNT, -MAX_AMOUNT, id="huge exponent, negative"),
        pytest.param("1e" + "9" * 10**6, MAX_AMOUNT, MAX_AMOUNT, id="exponent of a million digits"),
        pytest.param("1e-" + "9" * 10**6, 1, 1, id="negative exponent of a million digits"),
        pytest.param("1e-999999999", 1, 1, id="next to nothing"),
        pytest.param("0e999999999", 0, 0, id="zero with a huge exponent"),
        pytest.param("0" * 10**6 + "8", 8000, 8, id="a million zeros before"),
        pytest.param("8." + "0" * 10**6, 8000, 8, id="a million zeros behind"),
        pytest.param("8." + "0" * 10**6 + "1", 8001, 9, id="a digit behind a million zeros"),
        pytest.param("0." + "0" * 10**6 + "1", 1, 1, id="a digit behind a million zeros and none before"),
        pytest.param("9" * 10**6, MAX_AMOUNT, MAX_AMOUNT, id="a million digits"),
        pytest.param("1" + "0" * 999 + "e-999", 1000, 1, id="digits and exponent that cancel"),
        pytest.param("0." + "0" * 998 + "1e999", 1000, 1, id="zeros and exponent that cancel"),
        pytest.param(1 << 2000, MAX_AMOUNT, MAX_AMOUNT, id="an integer of 2001 bits"),
        pytest.param(-(1 << 2000), -MAX_AMOUNT, -MAX_AMOUNT, id="a negative integer of 2001 bits"),
    ],
)
def test_quantities_of_any_length_count_clamped(raw: str | int, thousandths: int, whole: int) -> None:
    assert (milli(raw), units(raw)) == (thousandths, whole)
    assert base_amount("nvidia.com/gpu", raw) == thousandths


@pytest.mark.timeout(20)
@pytest.mark.parametrize("raw", ["1e999", "9" * 600, "1e-999999999", "1e" + "9" * 5000], ids=lambda raw: raw[:12])
def test_an_exact_value_has_a_limited_length_and_exponent(raw: str) -> None:
    with pytest.raises(QuantityError, match=r"is not a quantity: (longer than 512 characters|exponent beyond 400)"):
        parse_quantity(raw)


@given(st.integers(0, 10**700), st.integers(-720, 720))
def test_long_quantities_agree_with_exact_arithmetic_up_to_640_digits(number: int, exponent: int) -> None:
    exact = Fraction(number) * Fraction(10) ** exponent
    found = units(f"{number}e{exponent}")
    assert found == min(ceil(exact), MAX_AMOUNT) or (number >= 10**640 and found - ceil(exact) in (0, 1))


_SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]


@given(
    sign=st.sampled_from(["", "-", "+"]),
    whole=st.integers(0, 10**6),
    fraction=st.sampled_from(["", ".", ".5", ".25", ".125", ".001", ".999"]),
    suffix=st.sampled_from([*_SUFFIXES, "e3", "e-3", "E2", "e0"]),
)
def test_values_agree_with_the_kubernetes_client(sign: str, whole: int, fraction: str, suffix: str) -> None:
    text = f"{sign}{whole}{fraction}{suffix}"
    ours = parse_quantity(text)
    # At most ten significant digits times 1024**6: inside the 28 digits in which the client is exact.
    assert ours == Fraction(reference_parse(text))  # type: ignore[no-untyped-call]
    expected = ceil(abs(ours) * 1000)
    assert abs(milli(text)) == min(expected, MAX_AMOUNT)
    assert (milli(text) < 0) == (ours < 0)


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e15, max_value=1e15))
def test_a_float_means_the_digits_it_is_written_with(raw: float) -> None:
    assert parse_quantity(raw) == Fraction(repr(raw))


@pytest.mark.parametrize(
    "resource, raw, expected",
    [
        ("cpu", "1500m", 1500),
        ("cpu", 2, 2000),
        ("memory", "4Gi", 4 * 1024**3),
        ("memory", "1500m", 2),
        ("pods", "110", 110),
        ("ephemeral-storage", "1Ki", 1_024),
        ("hugepages-2Mi", "4Mi", 4 * 1024**2),
        ("nvidia.com/gpu", "8", 8000),
        ("nvidia.com/gpu", 8, 8000),
        ("nvidia.com/mig-1g.18gb", "3", 3000),
        ("rdma/hca_shared", "63", 63000),
        ("example.kubernetes.io/device", "1", 1000),
        ("attachable-volumes-csi-ebs", "25", 25000),
        ("count/pods", "5", None),
        ("count/deployments.apps", "5", None),
        ("requests.cpu", "5", None),
        ("requests.nvidia.com/gpu", "5", None),
        ("limits.memory", "5Gi", None),
        ("persistentvolumeclaims", "5", None),
        ("count/pods", "no quantity", None),
        ("limits.memory", True, None),
    ],
)
def test_base_units_follow_the_resource(resource: str, raw: str | int, expected: int | None) -> None:
    assert base_amount(resource, raw) == expected


def test_amounts_keep_order_and_drop_unscheduled_resources() -> None:
    raw: dict[str, str | int | float] = {"nvidia.com/gpu": 1, "count/pods": "9", "memory": "1Ki", "cpu": 0.5}
    found = amounts(raw)
    assert list(found.items()) == [("nvidia.com/gpu", 1000), ("memory", 1024), ("cpu", 500)]
    assert amounts(None) == {}
    assert amounts({"cpu": "-1"}) == {"cpu": -1000}


def test_amounts_name_the_bad_key() -> None:
    with pytest.raises(QuantityError, match=r"^nvidia\.com/gpu: '2 cards' is not a quantity: unknown suffix ' cards'"):
        amounts({"cpu": "1", "nvidia.com/gpu": "2 cards"})


@pytest.mark.parametrize(
    "resource, amount, expected",
    [
        ("cpu", 0, "0"),
        ("cpu", 1500, "1500m"),
        ("cpu", 2000, "2"),
        ("cpu", -500, "-500m"),
        ("cpu", 12_000, "12"),
        ("cpu", 2_000_000, "2k"),
        ("cpu", 2_500_000, "2500"),
        ("memory", 0, "0"),
        ("memory", 1000, "1000"),
        ("memory", 1536, "1536"),
        ("memory", 4 * 1024**3, "4Gi"),
        ("memory", 1536 * 1024**2, "1536Mi"),
        ("memory", 2 * 1024**4, "2Ti"),
        ("memory", MAX_AMOUNT, "8Pi"),
        ("pods", 110, "110"),
        ("pods", 3000, "3k"),
        ("nvidia.com/gpu", 8000, "8"),
        ("nvidia.com/gpu", 500, "500m"),
        ("ephemeral-storage", 1024**3, "1Gi"),
        ("ephemeral-storage", 1, "1"),
        ("hugepages-2Mi", 4 * 1024**2, "4Mi"),
    ],
)
def test_amounts_are_written_in_canonical_form(resource: str, amount: int, expected: str) -> None:
    assert format_amount(resource, amount) == expected


@given(
    resource=st.sampled_from(["cpu", "memory", "pods", "nvidia.com/gpu", "ephemeral-storage", "hugepages-1Gi"]),
    amount=st.one_of(st.integers(-MAX_AMOUNT, MAX_AMOUNT), st.integers(-5, 5).map(lambda n: n * 1024**3)),
)
def test_writing_and_reading_gives_the_same_amount(resource: str, amount: int) -> None:
    assert base_amount(resource, format_amount(resource, amount)) == amount


@given(st.integers(-MAX_AMOUNT, MAX_AMOUNT))
def test_each_format_reads_back_in_its_unit(amount: int) -> None:
    assert milli(format_milli(amount)) == amount
    assert units(format_units(amount)) == amount
    assert units(format_binary(amount)) == amount
