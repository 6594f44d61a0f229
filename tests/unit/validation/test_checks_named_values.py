"""Messages about a wrong value name the value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pytest

from capcard_sched.admission.jobs import check_new_job
from capcard_sched.admission.queues import check_queue_object
from capcard_sched.admission.review import AdmissionResult
from capcard_sched.model.decode_errors import field_path
from capcard_sched.validation.constraints import COMMON_RULES, RULES
from capcard_sched.validation.structure import check_fields
from capcard_sched.validation.unsupported_fields import check_affinity
from tests.unit.admission.objects import changed, vectors, view

#: The parts of JSON, of lists and of arguments.
PART: Final = re.compile(r"[A-Za-z0-9.:-]+")
#: Values that a field may refuse, of all types.
WRONG: Final[tuple[Any, ...]] = (-7, 4_999_999_999, 2.625, True, "zq-7!", "", {}, [])


class Wrong(NamedTuple):
    """A message about a value."""

    value: Any
    message: str

    def names_the_value(self) -> bool:
        """Whether the message has the value, or the kind of a list or mapping; of a text with parts, a part of it.

        A field that is not supported, and a key that is none, are named by their path: no value is accepted.
        """
        if self.message.startswith(("is not supported", "the key ")):
            return True
        if isinstance(self.value, dict | list):
            return ("a mapping" if isinstance(self.value, dict) else "a list") in self.message
        if self.value == "":
            return self.message.endswith(("is required", '""', "''")) or '""' in self.message or "''" in self.message
        text = str(self.value).lower() if isinstance(self.value, bool) else str(self.value)
        parts = PART.findall(text) if isinstance(self.value, str) else ()
        return (
            text in self.message
            or "[...]" in self.message
            or any(part in self.message for part in parts if len(parts) > 1)
        )


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The scalars of a value, each with its path after that of the value."""
    if isinstance(value, dict) and value:
        for key, found in value.items():
            yield from leaves(found, f"{path}.{field_path([key])}" if key.isalnum() else f'{path}["{key}"]')
    elif isinstance(value, list) and value:
        for index, found in enumerate(value):
            yield from leaves(found, f"{path}[{index}]")
    else:
        yield path, value


def of_webhooks() -> Iterator[Any]:
    """Rejected vectors: a message at the place of one of their values is about that value."""
    checks: dict[str, Callable[[Any], AdmissionResult]] = {
        "jobs": lambda obj: check_new_job(obj, view()),
        "queues": lambda obj: check_queue_object(obj, None, view()),
    }
    for kind, check in checks.items():
        data = vectors(f"{kind}.yaml")
        for path, value, *_ in data["rejected"]:
            if value == "~delete":
                continue
            values = {f"{path}{place}": found for place, found in leaves(value) if found not in (None, [], {})}
            for finding in check(changed(data["base"], path, value)).errors:
                if finding.field in values:
                    wrong = Wrong(values[finding.field], finding.message)
                    yield pytest.param(wrong, id=f"{finding.field}={values[finding.field]}"[:100])


def of_files() -> Iterator[Any]:
    """Each rule of the fields of a file, for each wrong value that the decoder leaves to it."""
    for kind, rules in (("any", COMMON_RULES), *RULES.items()):
        for path, check in rules:
            for value in WRONG:
                try:
                    message = check(value)
                except (TypeError, AttributeError):
                    continue  # the decoder refuses the type, see `of_types`
                if message is not None and isinstance(value, str if "annotations" in path else int | float | str):
                    yield pytest.param(Wrong(value, message), id=f"{kind} {path}={value!r}")


def of_types() -> Iterator[Any]:
    """The decoder, for values of a wrong type."""
    for value in WRONG:
        for path in ("spec.minMember", "spec.queue", "spec.minResources", "spec.subGroupPolicy"):
            group = changed({"metadata": {"name": "g"}, "spec": {}}, path, value)
            for finding in check_fields("PodGroup", group):
                yield pytest.param(Wrong(value, finding.message), id=f"{path}={value!r}")


def of_terms() -> Iterator[Any]:
    """Terms of the affinity of groups."""
    for side in ("required", "preferred"):
        term = {"podGroupSelector": {}, "topologyTier": 1, **({"weight": 5} if side == "preferred" else {})}
        base = {"spec": {"topologyAffinity": {"podGroupAntiAffinity": {side: [term]}}}}
        for field in ("topologyTier", "topologyTierName", "weight", "podGroupSelector", "namespaceSelector"):
            for value in (*WRONG, 101, "rack"):
                place = f"spec.topologyAffinity.podGroupAntiAffinity.{side}[0]"
                made = changed(base, f"{place}.{field}", value)
                if field == "topologyTierName":
                    made = changed(made, f"{place}.topologyTier", "~delete")
                for finding in check_affinity(made):
                    if finding.field == f"{place}.{field}":
                        yield pytest.param(Wrong(value, finding.message), id=f"{side} {field}={value!r}")


@pytest.mark.parametrize("wrong", [*of_webhooks(), *of_files(), *of_types(), *of_terms()])
def test_a_message_about_a_wrong_value_names_it(wrong: Wrong) -> None:
    assert wrong.names_the_value(), wrong.message
