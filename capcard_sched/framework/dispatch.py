"""One dispatcher for all hooks, driven by the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capcard_sched.framework.hooks import HOOKS, Hook
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.status import Vote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from capcard_sched.framework.plugin import Plugin

#: (plugin name, bound method)
Entry = tuple[str, "Callable[..., Any]"]


class HookFailed(Exception):  # noqa: N818 - it says what happened; HookError is the record of it
    """A plugin raised. Carries who and where, so that only the job or task at hand is skipped."""

    def __init__(self, plugin: str, hook: str, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.plugin = plugin
        self.hook = hook
        self.error = error


class Dispatch:
    """Which plugin methods answer each hook, by tier. Resolved once per scheduler-conf."""

    def __init__(self, tiers: Sequence[Sequence[tuple[Plugin, dict[str, bool]]]]) -> None:
        """`tiers`: per tier, plugin instances with their conf switches."""
        #: Plugins in order; one listed twice is there once.
        self.plugins: list[Plugin] = []
        for tier in tiers:
            for plugin, _ in tier:
                if plugin not in self.plugins:
                    self.plugins.append(plugin)
        self._tiers: dict[str, list[list[Entry]]] = {}
        self._flat: dict[str, list[Entry]] = {}
        for hook in HOOKS:
            resolved = [self._resolve(hook, tier) for tier in tiers]
            self._tiers[hook.method] = [entries for entries in resolved if entries]
            self._flat[hook.method] = [entry for entries in resolved for entry in entries]
        voters = {name for name, _ in self._flat["job_enqueueable"]}
        #: Whether every plugin that votes on admission says what its vote follows from.
        self.says_grounds = voters == {name for name, _ in self._flat["enqueue_token"]}

    @staticmethod
    def _resolve(hook: Hook, tier: Sequence[tuple[Plugin, dict[str, bool]]]) -> list[Entry]:
        return [
            (plugin.name, getattr(plugin, hook.method))
            for plugin, switches in tier
            if getattr(plugin, hook.method, None) is not None
            and (hook.switch is None or switches.get(hook.switch, True))
        ]

    def entries(self, method: str) -> list[Entry]:
        """(plugin name, method) of everyone who answers the hook, in order: for callers that combine themselves."""
        return self._flat[method]

    def has(self, method: str) -> bool:
        """Whether anyone answers the hook."""
        return bool(self._flat[method])

    def keys(self, method: str, subject: object) -> tuple[Any, ...]:
        """Combine.KEYS."""
        found = []
        for name, call in self._flat[method]:
            try:
                found.append(call(subject))
            except Exception as error:
                raise HookFailed(name, method, error) from error
        return tuple(found)

    def notify(self, method: str, *arguments: object) -> None:
        """Combine.NOTIFY: everyone is told even when one fails; the first failure is raised at the end."""
        failed: HookFailed | None = None
        for name, call in self._flat[method]:
            try:
                call(*arguments)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                failed = failed or HookFailed(name, method, error)
        if failed is not None:
            raise failed

    def refusal(self, method: str, *arguments: object) -> Refusal | None:
        """Combine.FIRST_REFUSAL."""
        for name, call in self._flat[method]:
            try:
                answer = call(*arguments)
            except Exception as error:
                raise HookFailed(name, method, error) from error
            if answer is not None:
                return answer  # type: ignore[no-any-return]
        return None

    def all(self, method: str, subject: object) -> bool:
        """Combine.ALL."""
        for name, call in self._flat[method]:
            try:
                if not call(subject):
                    return False
            except Exception as error:
                raise HookFailed(name, method, error) from error
        return True

    def any(self, method: str, subject: object) -> bool:
        """Combine.ANY."""
        for name, call in self._flat[method]:
            try:
                if call(subject):
                    return True
            except Exception as error:
                raise HookFailed(name, method, error) from error
        return False

    def votes(self, method: str, subject: object) -> tuple[bool, Refusal | None]:
        """Combine.VOTES: the verdict, and the refusal that rejected where one was given."""
        permitted = False
        for tier in self._tiers[method]:
            for name, call in tier:
                try:
                    answer = call(subject)
                except Exception as error:
                    raise HookFailed(name, method, error) from error
                if isinstance(answer, Refusal):
                    return False, answer
                if answer == Vote.REJECT:
                    return False, None
                permitted = permitted or answer == Vote.PERMIT
            if permitted:
                return True, None
        return True, None

    def first_tier_all(self, method: str, subject: object) -> bool:
        """Combine.FIRST_TIER_ALL; false when nobody answers."""
        for tier in self._tiers[method]:
            for name, call in tier:
                try:
                    if not call(subject):
                        return False
                except Exception as error:
                    raise HookFailed(name, method, error) from error
            return True
        return False

    def victims(self, method: str, task: object, candidates: list[Any]) -> list[Any]:
        """Combine.VICTIMS, with the ruling of W-10: an empty intersection ends its tier and asks the next."""
        for tier in self._tiers[method]:
            chosen: list[Any] | None = None
            for name, call in tier:
                try:
                    answer = call(task, candidates)
                except Exception as error:
                    raise HookFailed(name, method, error) from error
                if answer is None:
                    continue
                if chosen is None:
                    chosen = list(answer)
                else:
                    allowed = {victim.uid for victim in answer}
                    chosen = [victim for victim in chosen if victim.uid in allowed]
                if not chosen:
                    break
            if chosen:
                return chosen
        return []
