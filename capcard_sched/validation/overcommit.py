"""The overcommit factor of a queue (`volcano.sh/overcommit-factor`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from capcard_sched.model.annotations import OVERCOMMIT_FACTOR
from capcard_sched.validation.checks import Finding, annotation_field
from capcard_sched.validation.names import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FACTOR_FORM: Final = "a number of at least 1, such as 1.5"
_NUMBER: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")


def overcommit_factor(annotations: Mapping[str, str]) -> float | None:
    """The factor of a queue; 0 for an invalid one, None without the annotation."""
    text = annotations.get(OVERCOMMIT_FACTOR)
    if text is None:
        return None
    factor = float(text) if _NUMBER.fullmatch(text) else 0.0
    return factor if factor >= 1 else 0.0


def check_overcommit(annotations: Mapping[str, str], deserved: Mapping[str, int]) -> Iterator[Finding]:
    """Errors about the factor of a queue. `deserved`: valid amounts in base units."""
    factor, field = overcommit_factor(annotations), annotation_field(OVERCOMMIT_FACTOR)
    if factor is None:
        return
    if not factor:
        message = f"{shown(annotations[OVERCOMMIT_FACTOR])} is no factor: the jobs of the queue are not admitted"
        yield Finding("error", field, message, FACTOR_FORM)
    elif not any(amount > 0 for amount in deserved.values()):
        yield Finding("error", field, "the queue has no deserved amounts to multiply", "spec.deserved with an amount")
