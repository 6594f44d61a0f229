"""Removes the names of objects in namespaces that a viewer may not see from the texts of a diagnosis."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.model.diagnosis import JobDiagnosis

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

#: In place of a name.
_HIDDEN: Final = "(another namespace)"


def redact(found: JobDiagnosis, namespaces: Collection[str], may_see: Callable[[str], bool]) -> JobDiagnosis:
    """The diagnosis without `namespace/...` of the hidden ones of `namespaces`, all of the cluster."""
    hidden = sorted((name for name in namespaces if not may_see(name)), key=len, reverse=True)
    if not hidden:
        return found
    pattern = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, hidden))})/[\w./*-]*[\w*]")

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(_HIDDEN, value)
        if isinstance(value, list | tuple):
            return [clean(one) for one in value]
        if isinstance(value, dict):
            return {clean(key): clean(one) for key, one in value.items()}
        return value

    return msgspec.convert(clean(msgspec.to_builtins(found)), JobDiagnosis)
