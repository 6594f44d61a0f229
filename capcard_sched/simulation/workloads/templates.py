"""Generated names of pods and ReplicaSets."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

#: The alphabet of generated names: no vowels, so no words; no 0, 1 or 3.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
POD_TEMPLATE_HASH = "pod-template-hash"


def spelled(number: int, length: int) -> str:
    """A number in the alphabet of names, `length` characters, lowest digit last, modulo the range."""
    letters = []
    for _ in range(length):
        number, digit = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[digit])
    return "".join(reversed(letters))


def digest(value: Any, length: int = 10) -> str:
    """A digest of a JSON value in the alphabet of names."""
    encoded = msgspec.json.encode(value, order="deterministic")
    return spelled(int.from_bytes(hashlib.sha256(encoded).digest()[:8], "big"), length)
