"""The cost of a review is linear in the bytes of the object, and its response is bounded."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest

from capcard_sched.admission.pods import AdmissionConfig
from capcard_sched.admission.review import AdmissionResult, decode_review, encode_review
from capcard_sched.admission.webhooks import WEBHOOKS, WebhookContext, decide
from capcard_sched.validation.checks import MOST_ERRORS, MOST_FINDINGS, MOST_RESOURCES, Finding, capped
from tests.lines import executed_lines
from tests.unit.admission.objects import view
from tests.unit.admission.worst import WORST, Worst, review

CONTEXT = WebhookContext(view(), AdmissionConfig(), ("capcard-sched", "volcano"))
#: Lines of Python that a rule may run per byte of the object, and besides.
LINES_PER_BYTE = 60
LINES = 400_000
#: Bytes of the longest response: findings of bounded length and number.
RESPONSE_BYTES = 300_000


def _decide(worst: Worst, body: bytes) -> bytes:
    request = decode_review(body)
    return encode_review(request, WEBHOOKS[worst.path].rule(request, CONTEXT))


@pytest.mark.parametrize("worst", WORST.values(), ids=WORST)
def test_a_rule_takes_a_bounded_number_of_steps_per_byte(worst: Worst) -> None:
    small, large = (msgspec.json.encode(review(worst.build(size))) for size in (200, 800))
    per_byte = LINES_PER_BYTE * len(small) + LINES
    few = executed_lines(lambda: _decide(worst, small), per_byte)
    many = executed_lines(lambda: _decide(worst, large), LINES_PER_BYTE * len(large) + LINES)
    assert many <= 1.5 * few * len(large) / len(small) + LINES / 4, (few, many)


@pytest.mark.parametrize("worst", WORST.values(), ids=WORST)
def test_a_response_is_bounded(worst: Worst) -> None:
    body = msgspec.json.encode(review(worst.build(800)))
    request = decode_review(body)
    result = decide(WEBHOOKS[worst.path], request, CONTEXT)
    assert len(result.findings) <= 3 * (MOST_FINDINGS + 1)
    assert len(encode_review(request, result)) <= RESPONSE_BYTES


@pytest.mark.parametrize(
    "name", ["Job: resources", "Pod: resources", "Pod: alternatives", "Pod: weights", "PodGroup: a request",
             "PodGroup: resources", "Queue: amounts", "Queue: a quota", "Job: plugins"],
)  # fmt: skip
def test_reviews_of_different_large_objects_leave_nothing_in_memory(name: str) -> None:
    worst = WORST[name]
    bodies = [msgspec.json.encode(review(worst.build(400 + number))) for number in range(10)]
    _decide(worst, bodies[0])
    gc.collect()
    tracemalloc.start()
    try:
        for body in bodies[1:]:
            _decide(worst, body)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept <= 2 * len(bodies[0]) + 16_384, (kept, len(bodies[0]))


def test_findings_beyond_the_limit_are_counted_and_keep_the_verdict() -> None:
    warnings = [Finding("warning", f"w{index}", "doubtful") for index in range(100)]
    errors = [Finding("error", f"e{index}", "wrong") for index in range(MOST_FINDINGS + 2)]
    found = capped([*warnings, *errors])
    assert [each.message for each in found if not each.field] == ["36 further findings", "2 further findings"]
    assert len(AdmissionResult(tuple(found)).errors) == MOST_FINDINGS + 1
    assert capped(errors[:3]) == errors[:3]


@pytest.mark.parametrize("count", [MOST_RESOURCES, MOST_RESOURCES + 1])
@pytest.mark.parametrize("name", ["Job: resources", "Pod: resources"])
def test_a_pod_with_too_many_resource_names_is_rejected(name: str, count: int) -> None:
    worst = WORST[name]
    request = decode_review(msgspec.json.encode(review(worst.build(count))))
    found = [each for each in WEBHOOKS[worst.path].rule(request, CONTEXT).errors if "resource names" in each.message]
    assert bool(found) == (count > MOST_RESOURCES)
    assert all(each.accepted == f"at most {MOST_RESOURCES} resource names per pod" for each in found)


def test_the_checks_of_a_rejected_object_end_after_many_errors() -> None:
    made = 0

    def errors() -> Iterator[Finding]:
        nonlocal made
        for index in range(10 * MOST_ERRORS):
            made += 1
            yield Finding("error", f"e{index}", "wrong")

    found = capped(errors())
    assert made == MOST_ERRORS
    assert found[-1].message == f"at least {MOST_ERRORS - MOST_FINDINGS} further findings"


@pytest.mark.parametrize(
    "name", ["Job: tasks without anything", "Job: policies", "Job: volumes", "Job: plugins", "Job: containers",
             "Job: environment", "Job: ports", "Job: mounts", "Job: tolerations", "Job: selector",
             "Queue: a hierarchy"],
)  # fmt: skip
def test_entries_after_many_errors_are_not_checked(name: str) -> None:
    worst = WORST[name]
    bodies = [msgspec.json.encode(review(worst.build(count * MOST_ERRORS))) for count in (2, 4)]
    few, many = (executed_lines(partial(_decide, worst, body), 10 * LINES) for body in bodies)
    assert many - few <= 5 * 2 * MOST_ERRORS, (few, many)
