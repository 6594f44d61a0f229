"""A vector on a harness: its sessions, what they decided, and the answers of plugins."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np

from capcard_sched.framework.api.hooks import BY_METHOD
from capcard_sched.framework.api.node_view import Diagnosis, FilterResult, NodeView, PodSignature
from capcard_sched.framework.api.plugin import Grant, Plugin, VictimDecision
from capcard_sched.framework.core import StepResult
from capcard_sched.framework.explain.diagnose import diagnose_job, find_job
from capcard_sched.framework.session.session import Session
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.autoscaling import AutoscalingOptions
from capcard_sched.model.job import Task
from capcard_sched.model.numa import format_cpus
from capcard_sched.model.refusal import Code, Refusal
from capcard_sched.testing import hooks_of
from tests.accounting import rebuilt, recorded
from tests.vectors.decisions import decided, lines, listed, packed, pairs, refused
from tests.vectors.notation import VectorHarness, names
from tests.vectors.plugins import PLUGINS

#: What a session decides; absent in an expectation: nothing is decided.
DECISIONS: Final = ("bind", "evict")
_MARKS: Final = {Code.UNSCHEDULABLE: " (may help)", Code.ERROR: " (error)"}
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

    def __init__(self, conf: Any, *, run: bool, provisioning: str = "") -> None:
        options = AutoscalingOptions(provisioning_class=provisioning)
        text = None if conf is None else conf_text(conf)
        self.harness = VectorHarness(text, run=run, plugins=PLUGINS, autoscaling=options)
        self._session: Session | None = None
        self._statement: Statement | None = None

    def do(self, text: str) -> None:
        """Execute statements of the notation."""
        self.harness.do(text)
        self._session = None

    def wait(self, seconds: float) -> None:
        """Let the next session open this much later than by default, one second after the last."""
        self.harness.now += seconds
        self._session = None

    def step(self, after: float | None, sessions: int | None) -> dict[str, Any]:
        """The decisions of one session `after` seconds, or of several; 0 runs sessions until nothing changes."""
        self._session = None
        before = self._attempts()
        results = []
        for _ in range(20 if sessions == 0 else sessions or 1):
            results.append(self.harness.step(None if after is None else self.harness.now + after))
            if sessions == 0 and results[-1].idle:
                break
        assert recorded(self.harness.state) == rebuilt(self.harness.state)
        wakeup = results[-1].next_wakeup
        return {
            **decided(results),
            **self._noted(before, results),
            "wakeup": None if wakeup is None else round(wakeup - self.harness.now),
        }

    def _attempts(self) -> dict[str, Any]:
        """The records of the skipped jobs."""
        found = self.harness.core.snapshot().failed_attempts
        return {job.key: found.get(job.key) for job in found}

    def _noted(self, before: Mapping[str, Any], results: Sequence[StepResult]) -> dict[str, Any]:
        """What the decisions do not show: skipped jobs, searches for victims, outcomes, and jobs as they are now.

        `skipped`: waiting jobs without an attempt in these sessions. `searched`: jobs and the actions that searched.
        """
        session, jobs = self.harness.core.snapshot().session, self.harness.state.jobs.values()
        kept = [key for key, attempt in self._attempts().items() if before.get(key) is attempt]
        ran = [result.report for result in results if not result.idle]
        tasks = self.harness.state.tasks
        return {
            "skipped": packed([key.partition("/")[2] for key in kept]),
            "searched": lines(
                f"{key.partition('/')[2]} {' '.join(actions)}"
                for key, actions in (session.results.preemption_reports.items() if session is not None else ())
            ),
            "visited": sum(report.visited_jobs for report in ran),
            "examined": sum(report.examined_nodes for report in ran),
            "outcomes": pairs(
                {tasks[uid].name: one.kind for uid, one in session.results.outcomes.items() if uid in tasks}, ":"
            )
            if session is not None
            else "",
            "queues": pairs({job.key.partition("/")[2]: job.queue for job in jobs}),
            "phases": pairs({job.key.partition("/")[2]: job.phase.value for job in jobs if job.phase}, ":"),
        }

    def ask(self, question: str) -> Any:
        """The answer of a plugin in an open session (`gang.preemptable p0 [p1 p2]`), or of all tiers (`session.`).

        `predicates.filter p`: the nodes that the plugin rejects by reason; `predicates.passes p`: the others, or -.
        `nodeorder.score p [n1 n2]`: the sum of its scores by node, of all nodes or of candidates. These three take
        several pods, too (`p1..3`). `deviceshare.nearest p`: figures of the nodes that reject p.
        `numa-aware.cpus n`: the CPUs of claims, and those left.
        `gang.metrics unschedule_task_count q`: the samples of a series by the values of their labels, those with q.
        """
        session = self._open()
        called, *words = question.replace("[", " [ ").replace("]", " ] ").split()
        plugin, _, hook = called.partition(".")
        if plugin == "session":
            if hook == "job_pipelined":
                return session.job_pipelined(self._named("job", words[0]))
            task, candidates = self._arguments(session, ("task", "candidates"), words)
            return listed(session.dispatch.victims(hook, task, candidates))
        if hook == "metrics":
            return self._samples(plugin, words[0], set(words[1:]))
        if hook in ("filter", "passes", "score"):
            answer, asked, pods = getattr(self, f"_{hook}"), self.harness.plugin(plugin), names(words.pop(0))
            answers = {
                pod: answer(session, asked, self._argument(session, "signature", pod), words[1:-1]) for pod in pods
            }
            return pairs(answers, ":") if hook == "passes" else answers if len(pods) > 1 else answers[pods[0]]
        if hook == "cpus":
            return self._cpus(words[0])
        if hook == "nearest":
            details = self.harness.plugin(plugin).method("rejection_details")(
                self.harness.task(words[0]), session.engine.all_rows()
            )
            return lines(f"{node}: {'; '.join(texts)}" for node, texts in details)
        found = self.harness.plugin(plugin).method(hook)
        if hook in _ORDER:
            return self._in_order(found, hook, words)
        asked = re.match(r"\(([^)]*)\)", BY_METHOD[hook].signature)
        assert asked is not None
        answer = found(*self._arguments(session, [one.strip() for one in asked.group(1).split(",")], words))
        return self._shown(answer)

    def uses(self, node: str) -> str:
        """Number/memory/cores in use of each shared card of a node."""
        return " ".join("/".join(map(str, used)) for used in self.harness.uses(node))

    def explain(self, subject: str) -> str:
        """Stage and summary of the diagnosis of a job, or of `job/pod`."""
        name, _, pod = subject.partition("/")
        snapshot = self.harness.core.snapshot()
        job = snapshot.state.jobs.get(f"default/{name}") or find_job(snapshot, "default", name)
        assert job is not None, name
        found = diagnose_job(snapshot, job, pod=pod)
        return f"{found.stage}: {found.summary}"

    def _cpus(self, node: str) -> str:
        """CPUs of a node by pod, and those that are free."""
        known = self.harness.plugin("numa-aware")._rows._nodes.get(node)
        if known is None:
            return "nothing is kept"
        claims = {self.harness.state.tasks[uid].name: claim.plan.cpus for uid, claim in known.claims.items()}
        return " ".join(f"{name}:{format_cpus(cpus)}" for name, cpus in {**claims, "free": known.available}.items())

    def try_out(self, text: str) -> None:
        """Operations on a statement of the open session.

        `evict p0`, `pipeline p1 n1`, `allocate p1 n1`, `discard`, `commit`.
        """
        session = self._open()
        statement = Statement(session) if self._statement is None else self._statement
        for operation in text.split(";"):
            verb, *words = operation.split()
            if verb == "discard":
                statement.discard()
            elif verb == "commit":
                statement.commit()
                statement = Statement(session)
            elif verb == "evict":
                statement.evict(self.harness.task(words[0]), "test")
            else:
                tasks = [self.harness.task(name) for name in names(words[0])]
                assert tasks[0].job is not None
                nodes = [session.nodes.by_name[words[1]]] * len(tasks)
                getattr(statement, verb)(tasks[0].job, tasks, nodes)
        self._statement = statement

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
                found.append([self._named("task", name) for word in words[:end] for name in names(word)])
                del words[: end + 1]
            elif kind:
                found.append(self._argument(session, kind, words.pop(0)))
        assert not words, words
        return found

    def _argument(self, session: Session, kind: str, word: str) -> Any:
        if kind == "job":
            return self._named("job", word)
        if kind in ("queue", "reclaimer queue"):
            return session.queues[word]
        task: Task = self._named("task", word)
        if kind == "cls":
            return task.cls
        if kind == "signature":
            assert task.job is not None
            return session.engine.signature(session.queues[task.job.queue], task)
        assert kind == "task", kind
        return task

    def _named(self, kind: str, word: str) -> Any:
        """A task or job by `name`, or by `namespace/name`."""
        namespace, _, name = word.rpartition("/")
        return getattr(self.harness, kind)(name, namespace=namespace or "default")

    def _filter(self, session: Session, plugin: Plugin, signature: PodSignature, _: Sequence[str]) -> dict[str, str]:
        """Nodes by the reasons against them; `may help`: evictions may remove it; `error`: an object is wrong."""
        hooks, rows = hooks_of(plugin, signature), session.all_rows()
        found: dict[str, list[str]] = {}
        at_once = FilterResult(len(rows))
        hooks.filter_static(rows, at_once)
        hooks.filter_rows(rows, at_once)
        hooks.filter_by_others(rows, at_once)
        for row, name in enumerate(session.nodes.names):
            diagnosis = Diagnosis(1)
            hooks.diagnose(session.rows(np.array([row])), diagnosis)
            # That a pod slot is left is part of the resource fit: filters only name it.
            full = rows.future_idle[row, 2] < 1
            assert (at_once.ok[row] and not full) == (not diagnosis.reasons and not full), name
            if diagnosis.reasons:
                mark = _MARKS.get(Code(int(diagnosis.codes[0])), "")
                found.setdefault("; ".join(diagnosis.reasons) + mark, []).append(name)
        return {reason: packed(alike) for reason, alike in found.items()}

    def _passes(self, session: Session, plugin: Plugin, signature: PodSignature, nodes: Sequence[str]) -> str:
        """The nodes that a plugin does not reject."""
        rejected = {name for alike in self._filter(session, plugin, signature, nodes).values() for name in names(alike)}
        return packed([name for name in session.nodes.names if name not in rejected]) or "-"

    def _score(self, session: Session, plugin: Plugin, signature: PodSignature, nodes: Sequence[str]) -> str:
        """Scores by node."""
        hooks, everything = hooks_of(plugin, signature), session.nodes.names
        candidates = list(nodes) or everything
        rows = NodeView(session.nodes, np.array([everything.index(name) for name in candidates], dtype=np.intp))
        total = hooks.row_scores(rows)
        for part in (hooks.static_scores(rows), hooks.comparing_scores(rows)):
            total = total if part is None else total + part
        return pairs({name: f"{score:.10g}" for name, score in zip(candidates, total.tolist(), strict=True)}, ":")

    def _samples(self, plugin: str, series: str, values: set[str]) -> dict[str, float]:
        samples = [one for one in self.harness.plugin(plugin).method("metrics")() if one.name == series]
        return {
            " ".join(one.labels.values()): int(one.value) if one.value == int(one.value) else one.value
            for one in samples
            if values <= set(one.labels.values())
        }

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
