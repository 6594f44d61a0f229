"""Syntax of Kubernetes names, labels and annotations: the checks that several kinds share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from capcard_sched.model.quoting import escaped
from capcard_sched.validation.checks import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")

LABEL_FORM: Final = 'at most 63 lower-case letters, digits and "-", starting and ending with a letter or digit'
SUBDOMAIN_FORM: Final = (
    'at most 253 lower-case letters, digits, "-" and ".", starting and ending with a letter or digit'
)
_QUALIFIED_FORM: Final = 'an optional DNS prefix and "/", then at most 63 letters, digits, "-", "_" and "."'
_VALUE_FORM: Final = 'at most 63 letters, digits, "-", "_" and ".", starting and ending with a letter or digit'

#: Characters of a DNS-1123 subdomain.
_SUBDOMAIN_CHARACTERS = 253


def is_label(text: str) -> bool:
    """Whether `text` is a DNS-1123 label."""
    return _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Whether `text` is a DNS-1123 subdomain."""
    return len(text) <= _SUBDOMAIN_CHARACTERS and _SUBDOMAIN.fullmatch(text) is not None


def check_label(value: Any, field: str) -> Iterator[Finding]:
    if not isinstance(value, str) or not is_label(value):
        yield Finding("error", field, f"{shown(value)} is not a DNS-1123 label", LABEL_FORM)


def check_labels(values: Any, field: str) -> Iterator[Finding]:
    """A map of labels: qualified names and label values."""
    for key, value in values.items() if isinstance(values, dict) else ():
        yield from check_qualified(key, field)
        yield from check_label_value(value, f'{field}["{key}"]')


def check_label_value(value: Any, field: str) -> Iterator[Finding]:
    if not isinstance(value, str) or _LABEL_VALUE.fullmatch(value) is None:
        yield Finding("error", field, f"{shown(value)} is not a label value", _VALUE_FORM)


def check_annotation_key(key: str, field: str) -> Iterator[Finding]:
    """The key of an annotation: the API server accepts upper case in its prefix, too."""
    if next(check_qualified(key.lower(), field), None) is not None:
        yield Finding("error", field, f"{shown(key)} is not a qualified name", _QUALIFIED_FORM)


def check_qualified(key: str, field: str) -> Iterator[Finding]:
    """The key of a label."""
    prefix, slash, name = key.rpartition("/")
    if (slash and not is_subdomain(prefix)) or _QUALIFIED.fullmatch(name) is None:
        yield Finding("error", field, f"{shown(key)} is not a qualified name", _QUALIFIED_FORM)


def shown(value: Any) -> str:
    """A value as messages quote it: short, with its type where the type is the point."""
    if isinstance(value, str):
        return f'"{escaped(value)}"' if len(value) <= 80 else f'"{escaped(value[:77])}..."'
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    return str(value) if isinstance(value, int | float) else "a list" if isinstance(value, list) else "a mapping"
