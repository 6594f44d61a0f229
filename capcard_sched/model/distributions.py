"""Optional distributions: parts of the product that are installed under a name of their own."""

from __future__ import annotations

from typing import Final

#: Kind and name of a part to its distribution. The name is also the extra of capcard-sched that installs it.
OPTIONAL: Final = {
    ("plugin", "extender"): "capcard-sched-extender",
    ("command", "trace"): "capcard-sched-trace",
}


def not_installed(kind: str, name: str) -> str:
    """Message about a part that an optional distribution provides, for a part that was not found; "" for others."""
    distribution = OPTIONAL.get((kind, name), "")
    return distribution and f'{kind} "{name}" is in the distribution {distribution}, which is not installed'


def install_hint(name: str) -> str:
    """The command that installs the distribution of a part."""
    return f'pip install "capcard-sched[{name}]"'
