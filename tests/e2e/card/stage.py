"""One daemon for a module of scenarios, and the expectations of a scenario: bindings and events.

Every scenario has the cluster for itself: it is wiped between two of them, while the daemon goes on.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.controlplane.cluster import ALL, Cluster, Manifest
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.e2e.card.expectations import (
    ObjectEvent,
    condition,
    conf_with,
    differing_bindings,
    differing_condition,
    differing_events,
    flattened,
)
from tests.e2e.checker import Replay, ViolationError, bound_too_often, differences
from tests.e2e.daemons import Daemon
from tests.e2e.history import History, Moment

_PATIENCE: Final = 15.0


@dataclass
class Stage:
    """The daemon of a module."""

    control_plane: ControlPlane
    daemon: Daemon
    arguments: Mapping[str, Any] = field(default_factory=dict)
    #: All that happened in all scenarios.
    moments: list[Moment] = field(default_factory=list)

    async def use(self, arguments: Mapping[str, Any]) -> None:
        """Run on with other arguments of the plugin: the scheduler-conf is a file that may change."""
        if arguments == self.arguments:
            return
        loaded = await self.daemon.metric("volcano_config_reload_total", result="loaded")
        self.daemon.conf_path.write_text(conf_with(arguments))
        self.arguments = arguments
        await eventually(self._reloaded, f"a scheduler-conf with {arguments} to be used", lambda n: n > loaded)

    async def _reloaded(self) -> float:
        return await self.daemon.metric("volcano_config_reload_total", result="loaded")

    async def knows(self, *made: Manifest) -> None:
        """Return when these objects are in the daemon's own snapshot; without any, when the snapshot is empty."""
        names = {(item["kind"], _identity(item)) for item in made}

        async def unheard() -> set[tuple[str, str]]:
            known = await self._known()
            return names - known if names else known

        await eventually(unheard, "the daemon's snapshot to contain everything", lambda left: not left)

    async def sees(self, section: str, name: str, check: Callable[[Mapping[str, Any]], bool]) -> None:
        """Return when it is so of an object in the daemon's snapshot (`Node`, `Queue`).

        Kinds come by different watches: the first change may arrive last.
        """

        async def shown() -> list[Mapping[str, Any]]:
            return [row for key, row in (await self._snapshot())[section].items() if key == name]

        await eventually(shown, f"the daemon to see {name} in {section}", lambda rows: any(map(check, rows)))

    async def _snapshot(self) -> dict[str, Any]:
        dumped = len(self.daemon.lines("dump written"))
        self.daemon.signal(signal.SIGUSR1)
        line = await self.daemon.logged("dump written", times=dumped + 1)
        found: dict[str, Any] = json.loads(await asyncio.to_thread(Path(line["file"]).read_text))
        return found

    async def _known(self) -> set[tuple[str, str]]:
        found = await self._snapshot()
        return {
            *(("Node", name) for name in found["Node"]),
            *(("Queue", name) for name in found["Queue"]),
            *(("PodGroup", job.get("uid", "")) for job in found["PodGroup"].values()),
            *(("Pod", uid) for uid in found["Pod"]),
        }

    async def settle(self) -> None:
        """Return after two more sessions."""
        before = await self.daemon.metric("volcano_cycles_total")
        await eventually(lambda: self.daemon.metric("volcano_cycles_total"), "two sessions", lambda n: n >= before + 2)

    async def end(self) -> None:
        """End the daemon as SIGTERM does; it must have had no trouble, and bound nothing twice."""
        assert await self.daemon.metric("volcano_internal_errors_total") == 0
        assert await self.daemon.metric("volcano_capacity_card_internal_errors_total") == 0
        assert await self.daemon.stop() == 0
        assert not [line for line in self.daemon.lines() if line["level"] in ("error", "critical")]
        twice = bound_too_often(self.moments, self.control_plane.audit())
        if twice:
            raise ViolationError("\n".join(twice))


class Scene:
    """One scenario on the stage."""

    def __init__(self, stage: Stage, cluster: Cluster, kubelet: Kubelet) -> None:
        self.stage = stage
        self.cluster = cluster
        self.kubelet = kubelet
        #: Every event that may exist so far.
        self._emitted: list[ObjectEvent] = []
        self._history = History(stage.control_plane)

    async def __aenter__(self) -> Self:
        await self._history.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._history.__aexit__(kind, error, trace)

    async def make(self, *manifests: Manifest | Sequence[Manifest]) -> None:
        """Make objects so that every session sees a whole setting: first nodes and queues, then pods, then groups."""
        flat = flattened(manifests)
        for kinds in ({"Node", "Queue"}, {"Pod"}, {"PodGroup"}):
            wave = [item for item in flat if item["kind"] in kinds]
            if wave:
                await self.stage.knows(*await self.cluster.create_all(wave))

    async def expect(
        self,
        *,
        bound: Mapping[str, str] | int | None = None,
        emitted: Iterable[ObjectEvent] = (),
        noted: Iterable[ObjectEvent] = (),
        phases: Mapping[str, str] | None = None,
        cards: Mapping[str, int] | None = None,
        queue: str = "q",
    ) -> None:
        """Wait until it is so and stays so.

        Args:
            bound: Pod to node, of all pods that are bound; or how many are.
            emitted: Events besides those of former calls; no others of their reasons exist. Pending objects
                have the same text in their condition.
            noted: Such events of objects that are not pending.
            phases: PodGroup to phase.
            cards: Cards that pods of `queue` hold, by the daemon's metrics.
            queue: The queue that `cards` is about.
        """
        emitted, noted = list(emitted), list(noted)
        self._emitted += emitted + noted

        async def differing() -> list[str]:
            return [
                *(differing_bindings(bound, await self.cluster.bound()) if bound is not None else []),
                *(await self._differing_events(emitted, noted)),
                *(await self._differing_phases(phases or {})),
                *(await self._differing_cards(queue, cards or {})),
            ]

        await eventually(differing, "the scenario to come out", lambda found: not found)
        await self.stage.settle()
        found = await differing()
        assert not found, f"it came out and then did not: {found}"

    async def expect_shown(self, name: str, text: str) -> None:
        """Wait until a pending pod's condition has this text."""

        async def shown() -> str:
            return str(condition(await self.cluster.get("pods", name), "PodScheduled").get("message", ""))

        await eventually(shown, f"pod {name} to show {text!r}", lambda message: message == text)

    async def _differing_events(self, emitted: Sequence[ObjectEvent], noted: Sequence[ObjectEvent]) -> list[str]:
        events = await self.cluster.list("events", namespace=ALL)
        ours = [one for one in events if one["involvedObject"].get("namespace") in (self.cluster.namespace, None)]
        found = differing_events([*emitted, *noted], self._emitted, ours)
        for expected in emitted:
            plural = "pods" if expected.kind == "Pod" else "podgroups"
            found += differing_condition(expected, await self.cluster.list(plural))
        return found

    async def _differing_phases(self, phases: Mapping[str, str]) -> list[str]:
        groups = await self.cluster.list("podgroups") if phases else []
        seen = {group["metadata"]["name"]: group.get("status", {}).get("phase", "") for group in groups}
        return [f"{name} is {seen[name]}" for name, phase in phases.items() if seen[name] != phase]

    async def _differing_cards(self, queue: str, cards: Mapping[str, int]) -> list[str]:
        found = []
        for card, amount in cards.items():
            held = await self.stage.daemon.metric("volcano_queue_card_allocated", queue_name=queue, card=card)
            if held != amount:
                found.append(f"queue {queue} holds {held:g} cards {card}")
        return found

    async def check(self) -> None:
        """The independent check of what was done, and that the daemon's cache is the API server's state."""
        await self._history.caught_up()
        replay = Replay()
        for moment in self._history.moments:
            replay.take_in(moment)
        self.stage.moments += self._history.moments
        found = [*replay.violations, *replay.incomplete(), *await differences(self.stage.daemon)]
        if found:
            raise ViolationError("\n".join(found))


async def eventually(read: Callable[[], Awaitable[Any]], what: str, good: Callable[[Any], bool]) -> None:
    """Poll until the result is good. Raises AssertionError with the last result."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE
    while True:
        answer = await read()
        if good(answer):
            return
        if loop.time() > deadline:
            lines = "\n".join(map(str, answer)) if isinstance(answer, list) else repr(answer)
            raise AssertionError(f"waited {_PATIENCE:g} s for {what}; the last answer was\n{lines}")
        await asyncio.sleep(0.03)


def start(control_plane: ControlPlane, folder: Path, arguments: Mapping[str, Any]) -> Daemon:
    """The daemon of a module, not yet started: a session at least every 20 ms, so that scenarios are soon over."""
    kubeconfig = control_plane.kubeconfig_for("scheduler-a")
    return Daemon(kubeconfig, folder, "--schedule-period=20ms", conf=conf_with(arguments), name="card")


def _identity(item: Manifest) -> str:
    """The key of an object in the daemon's snapshot."""
    meta = item["metadata"]
    return str(meta["uid"] if item["kind"] in {"Pod", "PodGroup"} else meta["name"])
