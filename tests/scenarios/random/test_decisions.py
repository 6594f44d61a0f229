"""Decisions, writes, reasons and figures for random clusters stay as recorded in `decisions.yaml`.

Each entry is a digest of one session: of everything that it returned, of the state after it, of the diagnoses of
waiting jobs, of the use of quotas and of the metrics. To see a difference, print the text of a cluster with two
versions: `python -m tests.scenarios.random.test_decisions SEED`. `pytest -n 0 --rewrite` records all anew.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

from capcard_sched.framework.core import StepResult
from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.framework.explain.queue_uses import queue_uses
from capcard_sched.model.intents import Evict
from capcard_sched.state.document import to_document
from capcard_sched.testing import Harness
from tests.scenarios.random.clusters import RandomCluster

FILE: Final = Path(__file__).with_name("decisions.yaml")
#: The sessions of each cluster by its seed.
_RECORDED: Final[dict[int, str]] = yaml.safe_load(FILE.read_text())
_SEEDS: Final = 100
_SESSIONS: Final = 9


def sessions(seed: int) -> Iterator[str]:
    """The whole text of each session of a cluster."""
    cluster = RandomCluster(seed)
    evicted: list[str] = []
    for number in range(_SESSIONS):
        if number:
            cluster.change(evicted)
        result = cluster.h.step()
        evicted = [intent.name for intent in result.intents if isinstance(intent, Evict)]
        yield text(cluster.h, result)


def text(h: Harness, result: StepResult) -> str:
    """All that a session decided and reported, one fact per line."""
    report = result.report
    lines = [_json(intent) for intent in result.intents]
    lines += [_json(entry) for entry in (*report.refusals, *report.warnings, *report.placed, *report.errors)]
    lines.append(_json([sorted(report.bound), sorted(report.cuts), report.unfinished]))
    lines.append(_json([report.enqueued, report.evicted, report.requeued, report.evictions_tried, report.visited_jobs]))
    lines.append(_json([report.examined_nodes, result.idle, result.next_wakeup, result.only_retries]))
    for kind, objects in to_document(h.state).items():
        lines += [f"{kind} {name} {_json(row)}" for name, row in objects.items()]
    if not result.idle:
        snapshot = h.core.snapshot()
        lines += [_json(diagnose_job(snapshot, job)) for _, job in sorted(h.state.active.items()) if job.pending]
        lines += [_json(use) for use in queue_uses(snapshot)]
        lines += [_json(sample) for _, metrics in snapshot.dispatch.entries("metrics") for sample in metrics()]
    return "\n".join(lines)


def digest(text: str) -> str:
    """A word for the text of a session."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str, order="deterministic").decode()


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_sessions_are_as_recorded(seed: int, request: pytest.FixtureRequest) -> None:
    found = " ".join(digest(text) for text in sessions(seed))
    if request.config.getoption("--rewrite"):
        _RECORDED[seed] = found
        FILE.write_text(yaml.safe_dump(_RECORDED, width=200))
    assert found == _RECORDED[seed]


if __name__ == "__main__":
    sys.stdout.write("\n\n".join(sessions(int(sys.argv[1]))) + "\n")
