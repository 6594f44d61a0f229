"""Kubernetes quantities as exact integers: `1500m`, `4Gi`, `1e3`, `0.5` in, base units out, and back.

No floats. Remainders round away from zero, as Kubernetes rounds `Value()` and `MilliValue()`. Results are capped at
+-`MAX_AMOUNT`, so that sums over a cluster fit an int64 column.
Text of any length and exponents of any size are accepted, as the API server stores them: what exceeds the cap is
clamped to it, and digits beyond `_EXACT_DIGITS` are rounded up. Only `parse_quantity`, which neither rounds nor caps,
limits both.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.model.device_quota import is_capacity_quota
from capcard_sched.model.quoting import quoted, shown
from capcard_sched.model.resources import CPU, MEMORY, PODS
from capcard_sched.model.text_cache import SHORT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.model.objects import RawQuantity

#: Base units. The largest amount; its negative is the smallest. Larger amounts are clamped to it: it exceeds every node
#: (8 PiB, or 9 trillion devices), and the sum of a thousand such amounts fits 64 bits.
MAX_AMOUNT = 2**53
#: Base units. The largest request of a pod; larger requests are clamped to it: it exceeds every node (64 TiB), and the
#: sum of a hundred thousand such requests fits 64 bits.
MAX_POD_AMOUNT = 2**46
#: Characters, and decimal exponent. Limits of `parse_quantity`.
MAX_TEXT = 512
MAX_EXPONENT = 400
#: Significant digits that count exactly.
_EXACT_DIGITS = 640
#: Decimal digits. A value with more digits before the point exceeds MAX_AMOUNT, whatever the suffix; a value with more
#: zeros after the point is below 1.
_DECISIVE_DIGITS = 20
#: Characters. Longer texts are not cached.
_LONGEST_CACHED = 64

_NUMBER = re.compile(r"([+-]?)(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(.*)", re.DOTALL)
_EXPONENT = re.compile(r"[eE]([+-]?)0*([0-9]+)")
#: Suffix to (numerator, power of ten).
_SUFFIXES: dict[str, tuple[int, int]] = {
    "n": (1, -9),
    "u": (1, -6),
    "m": (1, -3),
    "": (1, 0),
    "k": (1, 3),
    "M": (1, 6),
    "G": (1, 9),
    "T": (1, 12),
    "P": (1, 15),
    "E": (1, 18),
    "Ki": (1 << 10, 0),
    "Mi": (1 << 20, 0),
    "Gi": (1 << 30, 0),
    "Ti": (1 << 40, 0),
    "Pi": (1 << 50, 0),
    "Ei": (1 << 60, 0),
}
_DECIMAL_SUFFIXES = ("m", "", "k", "M", "G", "T", "P", "E")
_BINARY_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class QuantityError(ValueError):
    """A value that is not a Kubernetes quantity, or not valid for its field."""


class _Parts(NamedTuple):
    """A quantity of value +-`digits` * `factor` * 10**`exponent`."""

    negative: bool
    digits: str
    factor: int
    exponent: int


def _parts(text: str) -> _Parts:
    """Parse a quantity. Cost: linear in the length. Raises QuantityError."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise QuantityError(
            f"{quoted(text)} is not a quantity: expected a number with an optional suffix, "
            "such as 2, 500m, 1.5, 4Gi or 1e3"
        )
    sign, whole, fraction, only_fraction, suffix = match.groups()
    fraction = only_fraction or fraction or ""
    digits = (whole or "") + fraction
    known = _SUFFIXES.get(suffix)
    if known is not None:
        factor, power = known
        return _Parts(sign == "-", digits, factor, power - len(fraction))
    exponent = _EXPONENT.fullmatch(suffix)
    if exponent is None:
        raise QuantityError(
            f"{quoted(text)} is not a quantity: unknown suffix {quoted(suffix)}; known are n, u, m, k, M, G, T, P, E, "
            "Ki, Mi, Gi, Ti, Pi, Ei and exponents such as e3"
        )
    # 10**12 exceeds the length of any text, so that a longer exponent decides the value.
    power = int(exponent[2]) if len(exponent[2]) <= 12 else 10**12
    return _Parts(sign == "-", digits, 1, (-power if exponent[1] == "-" else power) - len(fraction))


def _scaled(text: str, power: int) -> int:
    """The value times 10**power, rounded away from zero and capped."""
    negative, digits, factor, exponent = _parts(text)
    digits = digits.lstrip("0")
    exponent += power
    size = len(digits) + exponent
    if not digits:
        return 0
    if size > _DECISIVE_DIGITS:
        magnitude = MAX_AMOUNT
    elif size < -_DECISIVE_DIGITS:
        magnitude = 1
    else:
        number = int(digits[:_EXACT_DIGITS])
        if len(digits) > _EXACT_DIGITS:
            number += bool(digits[_EXACT_DIGITS:].strip("0"))
            exponent += len(digits) - _EXACT_DIGITS
        number *= factor
        scale: int = 10 ** abs(exponent)
        magnitude = min(number * scale if exponent >= 0 else -(-number // scale), MAX_AMOUNT)
    return -magnitude if negative else magnitude


def _text(raw: object) -> str:
    """A raw quantity as text: in YAML it may be a number. Raises QuantityError for any other type."""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, bool) or not isinstance(raw, (int, float)):
        raise QuantityError(f"{shown(raw)} is not a quantity: expected text or a number")
    if isinstance(raw, int) and raw.bit_length() > 1024:  # above the interpreter's limit for int to text, and the cap
        return "-1e400" if raw < 0 else "1e400"
    return repr(raw)


# Computed 1.5 us, kept 0.05 (benchmarks/caches.py).
_scaled_cached = lru_cache(maxsize=32768)(_scaled)


def parse_quantity(raw: RawQuantity) -> Fraction:
    """The exact value, neither rounded nor capped. Raises QuantityError, also beyond MAX_TEXT and MAX_EXPONENT."""
    text = _text(raw)
    if len(text) > MAX_TEXT:
        raise QuantityError(f"{quoted(text)} is not a quantity: longer than {MAX_TEXT} characters")
    negative, digits, factor, exponent = _parts(text)
    if abs(exponent) > MAX_EXPONENT + MAX_TEXT:
        raise QuantityError(f"{quoted(text)} is not a quantity: exponent beyond {MAX_EXPONENT}")
    value = Fraction(int(digits) * factor) * Fraction(10) ** exponent
    return -value if negative else value


def _amount(raw: RawQuantity, power: int) -> int:
    text = raw if type(raw) is str else _text(raw)
    return (_scaled_cached if len(text) <= _LONGEST_CACHED else _scaled)(text, power)


def milli(raw: RawQuantity) -> int:
    """Thousandths, rounded away from zero, within +-MAX_AMOUNT. Raises QuantityError."""
    return _amount(raw, 3)


def units(raw: RawQuantity) -> int:
    """Whole units, rounded away from zero, within +-MAX_AMOUNT. Raises QuantityError."""
    return _amount(raw, 0)


def is_scalar(resource: str) -> bool:
    """Whether a resource other than cpu, memory and pods is scheduled.

    True for extended and other prefixed names, ephemeral-storage, `hugepages-*` and `attachable-volumes-*`; False for
    object counts (`count/pods`), quota forms (`requests.cpu`, `limits.memory`) and undefined plain names.
    """
    if resource.startswith(("count/", "requests.", "limits.")):
        return False
    return (
        "/" in resource or resource == "ephemeral-storage" or resource.startswith(("hugepages-", "attachable-volumes-"))
    )


def is_in_bytes(resource: str) -> bool:
    """Whether the base unit is the byte."""
    return resource in (MEMORY, "ephemeral-storage") or resource.startswith("hugepages-")


def is_quota_in_bytes(name: str) -> bool:
    """Whether the base unit is the byte, of a resource or of the name of a ResourceQuota: `requests.memory`."""
    plain = name.removeprefix("requests.").removeprefix("limits.")
    return is_in_bytes(plain) or name.rpartition("/")[2] in ("storage", "requests.storage")


def _base(resource: str, text: str) -> int | None:
    if resource == CPU:
        return milli(text)
    if resource == PODS or is_in_bytes(resource) or is_capacity_quota(resource):
        return units(text)
    return milli(text) if is_scalar(resource) else None


# Computed 0.25 us, kept 0.06 (benchmarks/caches.py).
_base_cached = lru_cache(maxsize=16384)(_base)


def base_amount(resource: str, raw: RawQuantity) -> int | None:
    """An amount in the base unit of its resource (`model.resources`), or None when the resource is not scheduled.

    cpu in thousandths, memory, ephemeral-storage and huge pages in bytes, pods and capacities of a DeviceClass in
    units, every other scalar in thousandths. Raises QuantityError; the quantity of a resource that is not scheduled is
    not parsed.
    """
    if type(raw) is str:
        text = raw
    elif resource in (CPU, MEMORY, PODS) or is_scalar(resource):
        text = _text(raw)
    else:
        return None
    is_short = len(text) <= _LONGEST_CACHED and len(resource) <= SHORT
    return _base_cached(resource, text) if is_short else _base(resource, text)


def amounts(raw: Mapping[str, RawQuantity] | None) -> dict[str, int]:
    """A resource list in base units, in its own order, without resources that are not scheduled; empty for None.

    Raises QuantityError naming the key.
    """
    found: dict[str, int] = {}
    for resource, quantity in (raw or {}).items():
        try:
            amount = base_amount(resource, quantity)
        except QuantityError as error:
            raise QuantityError(f"{resource}: {error}") from None
        if amount is not None:
            found[resource] = amount
    return found


# --- back to text ---------------------------------------------------------------------------------------------------


def _suffixed(amount: int, base: int, suffixes: tuple[str, ...]) -> str:
    """The shortest exact form: the largest suffix that leaves a whole number."""
    step = 0
    while amount and step + 1 < len(suffixes) and amount % base == 0:
        amount //= base
        step += 1
    return f"{amount}{suffixes[step]}"


def format_milli(amount: int) -> str:
    """Thousandths in Kubernetes' canonical decimal form: 1500 is `1500m`, 2000 is `2`, 2000000 is `2k`."""
    return _suffixed(amount, 1000, _DECIMAL_SUFFIXES) if amount else "0"


def format_units(amount: int) -> str:
    """Whole units in Kubernetes' canonical decimal form: 110 is `110`, 1000 is `1k`."""
    return _suffixed(amount, 1000, _DECIMAL_SUFFIXES[1:])


def format_binary(amount: int) -> str:
    """Bytes in Kubernetes' canonical binary form: 4294967296 is `4Gi`, 1000 is `1000`."""
    return _suffixed(amount, 1024, _BINARY_SUFFIXES)


def in_units(resource: str, amount: int) -> float:
    """A base-unit amount as a plain number: cores, cards and devices, pods, bytes."""
    is_plain = is_quota_in_bytes(resource) or resource == PODS or is_capacity_quota(resource)
    return float(amount) if is_plain else amount / 1000


def format_amount(resource: str, amount: int) -> str:
    """A base-unit amount as Kubernetes prints that resource; parsing it again gives the same amount."""
    if is_in_bytes(resource) or is_capacity_quota(resource):
        return format_binary(amount)
    if resource == PODS:
        return format_units(amount)
    return format_milli(amount)


def shown_amount(resource: str, amount: float) -> str:
    """An amount of `in_units` as reports show it: bytes in Gi or Mi, at most three decimals, never an exponent.

    Bytes of which Mi would show 0: in Ki, less than 1Ki as bytes.
    """
    unit = ""
    if is_quota_in_bytes(resource):
        size, unit = (2**30, "Gi") if not amount % 2**30 else (2**20, "Mi")
        if 0 < amount < 2**20:
            size, unit = (2**10, "Ki") if amount >= 2**10 else (1, " bytes")
        amount /= size
    return f"{amount:.3f}".rstrip("0").rstrip(".") + unit
