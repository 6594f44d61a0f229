"""`python -m benchmarks.reviews`: CPU time of one review of the worst object of each shape, without an API server.

The objects are those of `benchmarks.e2e.hostile`, of 1.4 MB. A review is what the admission server does with a body in
its thread: decoding, the rule within its budget, and the response. `--shape "Job:,Pod:"` chooses some.
"""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec
from cyclopts import App
from rich.console import Console
from rich.table import Table

from benchmarks.e2e.hostile import MOST_BYTES, WorstShape, shapes, sized
from capcard_sched.admission.pods import AdmissionConfig
from capcard_sched.admission.review import AdmissionResult, decode_head, decode_review, encode_review
from capcard_sched.admission.webhooks import WEBHOOKS, Webhook, WebhookContext, decide
from capcard_sched.daemon.admission.reviews import BUDGET_SECONDS
from capcard_sched.daemon.admission.rule_worker import SECONDS_PER_MIB, cpu_budget
from capcard_sched.gc import settle_memory
from capcard_sched.validation.budget import BudgetError
from capcard_sched.validation.checks import Finding
from tests.unit.admission.objects import view
from tests.unit.admission.worst import review

app = App(name="bench-reviews", help="Measure the CPU time of reviews of the worst objects.")

#: Kind to the folder of its webhooks; other kinds have policies only.
_FOLDERS: Final = {
    "Job": "jobs",
    "Pod": "pods",
    "PodGroup": "podgroups",
    "Queue": "queues",
    "NamespaceQueue": "namespacequeues",
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "batch Job"), "workloads"),
}
_REPEATS: Final = 3


def _seconds(hook: Webhook, body: bytes, context: WebhookContext) -> tuple[float, str]:
    """CPU seconds of one review, and its outcome."""
    began = time.thread_time()
    decode_head(body)
    request: Any = decode_review(body)
    try:
        with cpu_budget(BUDGET_SECONDS + SECONDS_PER_MIB * len(body) / 2**20):
            result = decide(hook, request, context)
        outcome = f"{len(result.errors)} errors" if result.errors else "allowed"
    except BudgetError as error:
        result, outcome = AdmissionResult((Finding("error", "", str(error), "a smaller object"),)), "budget"
    encode_review(request, result)
    del request, result
    return time.thread_time() - began, outcome


def _row(shape: WorstShape, context: WebhookContext) -> list[str]:
    obj = msgspec.json.decode(sized(shape, MOST_BYTES))
    body = msgspec.json.encode(review(obj, namespace="hostile"))
    cells = [shape.name, f"{len(body) >> 10} KiB"]
    for step in ("mutate", "validate"):
        hook = WEBHOOKS.get(f"/{_FOLDERS[shape.kind]}/{step}")
        if hook is None:
            cells.append("-")
            continue
        settle_memory()
        runs = [_seconds(hook, body, context) for _ in range(_REPEATS)]
        cells.append(f"{1e3 * min(runs)[0]:.0f} ms, {runs[0][1]}")
    return cells


@app.default
def main(*, shape: str = "") -> None:
    """Measure each shape.

    Args:
        shape: Parts of names, joined by commas.
    """
    context = WebhookContext(view(), AdmissionConfig(), ("capcard-sched", "volcano"))
    table = Table("shape", "review", "mutate", "validate", title="CPU time of one review, least of three")
    for each in shapes():
        if each.kind in _FOLDERS and any(part in each.name for part in shape.split(",")):
            table.add_row(*_row(each, context))
    Console(width=110).print(table)


if __name__ == "__main__":
    app()
