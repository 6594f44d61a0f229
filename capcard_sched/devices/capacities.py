"""Shares of capacities: what a request of a shared device consumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from capcard_sched.model.decode_errors import field_path
from capcard_sched.model.quantity import QuantityError, format_binary, format_milli, parse_quantity

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from capcard_sched.model.device_objects import CapacityPolicy, DeviceCapacity

_INT_LIMIT: Final = 2**63 - 1


class CapacityError(ValueError):
    """A share that cannot be represented, or is negative: it fails the whole pod."""


class Policy(NamedTuple):
    """How requests of one capacity are rounded."""

    default: Fraction | None
    values: tuple[Fraction, ...]
    minimum: Fraction | None
    maximum: Fraction | None
    step: Fraction | None


class CapacityFacts(NamedTuple):
    """One capacity of a device."""

    value: Fraction
    policy: Policy | None


Capacities: TypeAlias = "dict[str, CapacityFacts]"


def parse_capacities(raw: Mapping[str, DeviceCapacity]) -> Capacities | str:
    """The capacities by name, or the problem of one of them."""
    found: Capacities = {}
    for name, each in raw.items():
        try:
            made = CapacityFacts(parse_quantity(each.value), _policy(each.request_policy))
        except QuantityError as error:
            return f"{field_path(('capacity', name))}: {error}"
        lowest = min(made.value, made.policy.default or 0) if made.policy is not None else made.value
        if lowest < 0:
            return f"{field_path(('capacity', name))}: {lowest} is negative"
        found[name] = made
    return found


def _policy(raw: CapacityPolicy | None) -> Policy | None:
    if raw is None:
        return None
    span = raw.valid_range
    low, high, step = (span.min, span.max, span.step) if span is not None else (None, None, None)
    return Policy(
        None if raw.default is None else parse_quantity(raw.default),
        tuple(map(parse_quantity, raw.valid_values or ())),
        None if low is None else parse_quantity(low),
        None if high is None else parse_quantity(high),
        None if step is None else parse_quantity(step),
    )


def consumption(capacities: Capacities, requested: Mapping[str, Fraction]) -> dict[str, Fraction] | None:
    """What a request consumes of each capacity, rounded by its policy; None if the device does not fit it.

    Raises CapacityError.
    """
    if not requested.keys() <= capacities.keys():
        return None
    found: dict[str, Fraction] = {}
    for name, capacity in capacities.items():
        amount = _rounded(capacity, requested.get(name), name)
        if amount < 0:
            raise CapacityError(f'capacity "{name}": capacity value is negative')
        found[name] = amount
    is_fit = all(
        found[name] <= capacity.value and not _violates(found[name], capacity.policy)
        for name, capacity in capacities.items()
    )
    return found if is_fit else None


def _rounded(capacity: CapacityFacts, requested: Fraction | None, name: str) -> Fraction:
    policy = capacity.policy
    if requested is None:
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return requested
    if policy.minimum is not None:
        return _stepped(policy, policy.minimum, requested, name)
    return next((value for value in policy.values if requested <= value), requested)


def _stepped(policy: Policy, minimum: Fraction, requested: Fraction, name: str) -> Fraction:
    """The request rounded up to a step; whole numbers count, as in kube-scheduler."""
    if requested < minimum:
        return minimum
    if policy.step is None:
        return requested
    wanted, low, step = (-(-each // 1) for each in (requested, minimum, policy.step))
    if requested > _INT_LIMIT or step <= 0:
        raise CapacityError(
            f'capacity "{name}": capacity request cannot be represented in the device\'s range arithmetic'
        )
    value = low + step * -(-(wanted - low) // step)
    if value > _INT_LIMIT:
        raise CapacityError(
            f'capacity "{name}": capacity request cannot be represented in the device\'s range arithmetic'
        )
    return requested * 0 + value


def _violates(amount: Fraction, policy: Policy | None) -> bool:
    if policy is None or amount == policy.default:
        return False
    if policy.minimum is not None or policy.maximum is not None or policy.step is not None:
        if policy.maximum is not None and amount > policy.maximum:
            return True
        if policy.step is None:
            return False
        wanted, low, step = (-(-each // 1) for each in (amount, policy.minimum or 0 * amount, policy.step))
        return step <= 0 or (wanted - low) % step != 0
    return bool(policy.values) and amount not in policy.values


def quantity_text(amount: Fraction) -> str:
    """An amount in Kubernetes' canonical form: binary where that is shorter."""
    if amount.denominator != 1:
        return format_milli(-(-amount * 1000 // 1))
    whole = amount.numerator
    return format_binary(whole) if whole and whole % 1024 == 0 else format_milli(whole * 1000)
