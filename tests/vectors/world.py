"""A vector on a harness: its sessions, what they decided, and the answers of plugins."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from capcard_sched.framework.api.hooks import BY_METHOD
from capcard_sched.framework.api.node_view import PodSignature
from capcard_sched.framework.api.plugin import Grant, VictimDecision
from capcard_sched.framework.core import StepResult
from capcard_sched.framework.session.session import Session
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.intents import Bind, EmitEvent, Evict, ObjectRef, UpdatePodCondition, UpdatePodGroup
from capcard_sched.model.job import Task
from capcard_sched.model.refusal import Figures, Refusal
from capcard_sched.testing import Harness
from tests.accounting import rebuilt, recorded
from tests.vectors.notation import calls, names
from tests.vectors.plugins import PLUGINS

#: What a session decides; absent in an expectation: nothing is decided.
DECISIONS: Final = ("bind", "evict")
_ORDER: Final = {"job_order", "queue_order", "task_order"}


def conf_text(conf: Any) -> str:
    """A scheduler-conf of a list: the actions, the plugins of each tier, and a map of arguments by action.

    A plugin is `name` or `name: {options}`.
    """
    if not isinstance(conf, list):
        return str(conf)
    actions, *tiers = conf
    document: dict[str, Any] = {"actions": actions}
    if tiers and isinstance(tiers[-1], dict):
        document["configurations"] = [{"name": name, "arguments": found} for name, found in tiers.pop().items()]
    document["tiers"] = [{"plugins": [_plugin(one) for one in tier]} for tier in tiers]
    return json.dumps(document)


def _plugin(entry: Any) -> dict[str, Any]:
    if isinstance(entry, str):
        return {"name": entry}
    [(name, options)] = entry.items()
    return {"name": name, **options}


class World:
    """A harness that executes statements, sessions and questions of a vector."""

    def __init__(self, conf: Any, *, run: bool) -> None:
        self.harness = Harness(None if conf is None else conf_text(conf), run=run, plugins=PLUGINS)
        self._session: Session | None = None
        self._statement: Statement | None = None

    def do(self, text: str) -> None:
        """Execute statements of the notation."""
        for verb, args, kwargs in calls(text):
            getattr(self.harness, verb)(*args, **kwargs)
        self._session = None

    def step(self, after: float | None, sessions: int | None) -> dict[str, Any]:
        """The decisions of one session `after` seconds, or of several; 0 runs sessions until nothing changes."""
        self._session = None
        results = []
        for _ in range(20 if sessions == 0 else sessions or 1):
            results.append(self.harness.step(None if after is None else self.harness.now + after))
            if sessions == 0 and results[-1].idle:
                break
        assert recorded(self.harness.state) == rebuilt(self.harness.state)
        return decided(results)

    def ask(self, question: str) -> Any:
        """The answer of a plugin in an open session (`gang.preemptable p0 [p1 p2]`), or of all tiers (`session.`)."""
        session = self._open()
        called, *words = question.replace("[", " [ ").replace("]", " ] ").split()
        plugin, _, hook = called.partition(".")
        if plugin == "session":
            task, candidates = self._arguments(session, ("task", "candidates"), words)
            return listed(session.dispatch.victims(hook, task, candidates))
        found = getattr(self.harness.plugin(plugin), hook)
        if hook in _ORDER:
            return self._in_order(found, hook, words)
        asked = re.match(r"\(([^)]*)\)", BY_METHOD[hook].signature)
        assert asked is not None
        answer = found(*self._arguments(session, [one.strip() for one in asked.group(1).split(",")], words))
        return self._shown(answer)

    def try_out(self, text: str) -> None:
        """Operations on a statement of the open session: `evict p0`, `pipeline p1 n1`, `allocate p1 n1`, `discard`."""
        session = self._open()
        if self._statement is None:
            self._statement = Statement(session)
        for operation in text.split(";"):
            verb, *words = operation.split()
            if verb == "discard":
                self._statement.discard()
            elif verb == "evict":
                self._statement.evict(self.harness.task(words[0]), "test")
            else:
                tasks = [self.harness.task(name) for name in names(words[0])]
                assert tasks[0].job is not None
                nodes = [session.nodes.by_name[words[1]]] * len(tasks)
                getattr(self._statement, verb)(tasks[0].job, tasks, nodes)

    def _open(self) -> Session:
        if self._session is None:
            self._session = self.harness.session()
            self._statement = None
        return self._session

    def _arguments(self, session: Session, kinds: Sequence[str], words: list[str]) -> list[Any]:
        found: list[Any] = []
        for kind in kinds:
            if kind in ("candidates", "tasks"):
                assert words.pop(0) == "[", "a list of pods in brackets"
                end = words.index("]")
                found.append([self.harness.task(name) for word in words[:end] for name in names(word)])
                del words[: end + 1]
            elif kind:
                found.append(self._argument(session, kind, words.pop(0)))
        assert not words, words
        return found

    def _argument(self, session: Session, kind: str, word: str) -> Any:
        if kind == "job":
            return self.harness.job(word)
        if kind in ("queue", "reclaimer queue"):
            return session.queues[word]
        task = self.harness.task(word)
        if kind == "cls":
            return task.cls
        if kind == "signature":
            assert task.job is not None
            signature: PodSignature = session.engine.signature(session.queues[task.job.queue], task)
            return signature
        assert kind == "task", kind
        return task

    def _in_order(self, order: Any, hook: str, words: list[str]) -> Any:
        """Names in the order of a hook, `=` between equal ones; for a single name its key."""
        session = self._open()
        kind = hook.partition("_")[0]
        keys = {name: order(self._argument(session, kind, name)) for name in words}
        if len(words) == 1:
            return json.loads(json.dumps(keys[words[0]]), parse_float=lambda text: round(float(text), 6))
        ranked = sorted(keys, key=lambda name: keys[name])
        return " < ".join(" = ".join(alike) for _, alike in groupby(ranked, key=lambda name: keys[name]))

    def _shown(self, answer: Any) -> Any:
        """An answer in names and figures."""
        match answer:
            case Refusal():
                return refused(answer)
            case Grant(count=count, refusal=refusal):
                return f"{count}" + (f", then {refused(refusal)}" if refusal is not None else "")
            case VictimDecision(protected=None):
                return "veto"
            case VictimDecision(protected=protected, victims=victims):
                causes = {self.harness.state.tasks[uid].name: cause for uid, cause in sorted((protected or {}).items())}
                return {**({} if victims is None else {"victims": listed(victims)}), **causes}
            case list() | tuple() if all(isinstance(one, Task) for one in answer):
                return listed(answer)
            case None | bool() | int() | float() | str():
                return getattr(answer, "name", answer)
        return str(answer)


def listed(tasks: Iterable[Task]) -> str:
    return " ".join(task.name for task in tasks)


def refused(refusal: Refusal) -> str:
    """Reason, queue and figures of a refusal: requested, the total with it, the limit. Without figures: the text."""
    figures = [refusal.figures] if refusal.figures is not None else list(refusal.alternatives)
    found = " ".join(
        [refusal.reason, *([f"of {refusal.queue}"] if refusal.queue else []), *(_figures(one) for one in figures)]
    )
    rendered = figures and all(f"<{one.requested}>" in refusal.message for one in figures)
    return found if rendered or not refusal.message else f"{found}: {refusal.message}"


def _figures(figures: Figures) -> str:
    return f"{figures.resource} {figures.requested} {figures.total}>{figures.limit}"


def decided(results: Sequence[StepResult]) -> dict[str, Any]:
    """What sessions decided, by the keys of an expectation."""
    intents = [intent for result in results for intent in result.intents]
    binds = [(intent.name, intent.node) for intent in intents if isinstance(intent, Bind)]
    victims: dict[str, list[str]] = {}
    for intent in intents:
        if isinstance(intent, Evict):
            victims.setdefault(intent.by.partition("/")[2], []).append(intent.name)
    events = [intent for intent in intents if isinstance(intent, EmitEvent)]
    pods = [intent for intent in intents if isinstance(intent, UpdatePodCondition)]
    groups = [intent for intent in intents if isinstance(intent, UpdatePodGroup)]
    return {
        "bind": _pairs(dict(sorted(binds))),
        "evict": _lines(f"{packed(sorted(found))}{f' for {by}' * bool(by)}" for by, found in sorted(victims.items())),
        "why": _lines(
            f"{intent.name} {intent.reason}: {intent.message}" for intent in intents if isinstance(intent, Evict)
        ),
        "nominate": _pairs({pod.name: pod.nominated_node for pod in pods if pod.nominated_node is not None}),
        "phase": _pairs({group.name: group.phase for group in groups}, ":"),
        "conditions": _lines(
            f"{group.name} {one.type}={one.status} {one.reason}{one.message and f': {one.message}'}"
            for group in groups
            for one in group.conditions
        ),
        "refuse": _lines(
            dict.fromkeys(
                f"{shown(about)} {refusal.plugin}.{refusal.hook} {refused(refusal)}"
                for result in results
                for about, refusal in result.report.refusals
            )
        ),
        "events": _lines(f"{shown(event.object)} {event.reason}" for event in events),
        "texts": _texts(events),
        "pods": _lines(f"{pod.name} {pod.reason}: {pod.message}" for pod in pods),
        "errors": _lines(
            f"{error.plugin}.{error.hook} {error.error}" for result in results for error in result.report.errors
        ),
        "idle": results[-1].idle,
    }


def _texts(events: Iterable[EmitEvent]) -> dict[str, Any]:
    """By reason: objects and messages."""
    found: dict[str, list[str]] = {}
    for event in events:
        found.setdefault(event.reason, []).append(f"{shown(event.object)}: {event.message}")
    return {reason: _lines(texts) for reason, texts in found.items()}


def shown(about: ObjectRef) -> str:
    return f"{about.kind}/{about.name}"


def _pairs(found: Mapping[str, str], mark: str = "@") -> str:
    by_value: dict[str, list[str]] = {}
    for name, place in sorted(found.items()):
        by_value.setdefault(place, []).append(name)
    return " ".join(f"{packed(alike)}{mark}{place}" for place, alike in by_value.items())


def packed(found: Sequence[str]) -> str:
    """Names with ranges, as the notation reads them."""
    parts: list[list[str]] = []
    for name in sorted(found, key=_numbered):
        if parts and _follows(parts[-1][-1], name):
            parts[-1].append(name)
        else:
            parts.append([name])
    return ",".join(part[0] if len(part) == 1 else f"{part[0]}..{_numbered(part[-1])[1]}" for part in parts)


def _numbered(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*?)(0|[1-9]\d*)", name)
    return (match.group(1), int(match.group(2))) if match else (name, -1)


def _follows(last: str, name: str) -> bool:
    (stem, number), (other, following) = _numbered(last), _numbered(name)
    return stem == other and number >= 0 and following == number + 1


def _lines(found: Iterable[str]) -> Any:
    """One string, or a list of several."""
    lines = list(found)
    return "" if not lines else lines[0] if len(lines) == 1 else lines
