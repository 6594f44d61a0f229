"""The kinds of changes that fixes are made of: one module each, found by its name."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from capcard_sched.insight.fixes.kind import FixKind


def _kinds() -> dict[str, FixKind]:
    found: dict[str, FixKind] = {}
    for module in iter_modules(__path__):
        for name, value in vars(import_module(f"{__name__}.{module.name}")).items():
            if isinstance(value, type) and issubclass(value, FixKind) and value is not FixKind:
                found[name] = value()
    return dict(sorted(found.items(), key=lambda item: (item[1].disruption, item[0])))


#: By name of the class, the least disruptive first.
KINDS: Final = _kinds()
