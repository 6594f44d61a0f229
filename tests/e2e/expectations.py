"""What tests wait for on a cluster."""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Any

from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import Manifest
from tests.scenarios.test_scenarios import fits


async def until(
    cluster: Cluster,
    kind: str,
    name: str = "*",
    *,
    count: int | None = None,
    within: float = 60.0,
    namespace: str = "",
    **match: Any,
) -> Manifest:
    """Wait until an object, or exactly `count`, has these fields; return the first, {} for a count of 0.

    `name` is a pattern; `match` is that of `tests/scenarios`: `*` in a string for anything, None for an absent field,
    lists with such entries. Raises AssertionError with the objects of that name after `within` seconds.
    """
    alike: list[Manifest] = []

    async def found() -> list[Manifest] | None:
        listed = await cluster.list(kind, namespace=namespace)
        alike[:] = [each for each in listed if fnmatchcase(each["metadata"]["name"], name)]
        right = [each for each in alike if fits(match, each)]
        return [*right, {}] if (bool(right) if count is None else len(right) == count) else None

    try:
        right: list[Manifest] = await cluster.wait_until(
            found, f"{count or 'a'} {kind} {name} with {match}", within=within
        )
    except AssertionError as error:
        error.add_note(f"there are {alike}"[:5000])
        raise
    return right[0]


def message(text: str) -> Manifest:
    """The status of an object with a condition whose message contains this text."""
    return {"conditions": [{"message": f"*{text}*"}]}


async def until_bound(
    cluster: Cluster, wanted: int | Collection[str], pattern: str = ".*", *, within: float = 60.0
) -> dict[str, str]:
    """Wait until these pods, or at least so many of a pattern, are bound; return their nodes by name."""

    async def enough() -> dict[str, str]:
        found = {name: node for name, node in (await cluster.bound()).items() if re.fullmatch(pattern, name)}
        return found if (len(found) >= wanted if isinstance(wanted, int) else {*wanted} <= found.keys()) else {}

    try:
        bound: dict[str, str] = await cluster.wait_until(enough, f"{wanted} pods {pattern} to be bound", within=within)
    except AssertionError as error:
        error.add_note(f"bound are {await cluster.bound()}")
        raise
    return bound
