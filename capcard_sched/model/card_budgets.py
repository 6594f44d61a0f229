"""CardBudgets (capcard-sched.io/v1alpha1): the card-hours that a queue and the queues below it may use in a period.

Use is an exact integer: thousandths of a card times milliseconds. The status has it as card-hours with two decimals,
the rest cut off: limits are whole hours, so that a text of use reaches a limit exactly when the use does.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from capcard_sched.model.annotations import CARD_NAME, CARD_NAME_ALIAS, CARD_REQUEST
from capcard_sched.model.cards import CARD, CardSyntaxError, parse_card_name, parse_card_request
from capcard_sched.model.objects import ApiStruct, ObjectMeta
from capcard_sched.model.queue import ROOT
from capcard_sched.model.quoting import escaped, quoted
from capcard_sched.model.timestamps import format_timestamp, parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from capcard_sched.model.job import Job
    from capcard_sched.model.task_class import TaskClass

CARD_BUDGET: Final = "CardBudget"
BUDGET_API: Final = "capcard-sched.io/v1alpha1"
ROLLING: Final = "rolling30d"
PERIODS: Final = ("month", "week", ROLLING)
WHEN_SPENT: Final = ("warn", "demote", "stop")
#: Units of use per card-hour.
CARD_HOUR: Final = CARD * 3_600_000
_HUNDREDTH: Final = CARD_HOUR // 100
_DAY: Final = 86_400_000
_WINDOW: Final = 30 * _DAY
_MAX_HOURS: Final = 10**9 - 1
_HOURS: Final = re.compile(r"[0-9]{1,9}h")
_USE: Final = re.compile(r"([0-9]{1,12})(?:\.([0-9]{2}))?h")
#: Names that a path has without quotes.
_PLAIN: Final = re.compile(r"[A-Za-z_-][A-Za-z0-9_-]*")
HOURS_FORM: Final = "whole card-hours from 0h to 999999999h, such as 5000h"
_MIDNIGHT: Final = datetime(1970, 1, 1, tzinfo=UTC)


NO_STATUS: Final = "has no figures yet: `capcard-sched web --ledger` writes its status"


# --- API object -----------------------------------------------------------------------------------------------------


class CardBudgetSpec(ApiStruct, frozen=True):
    queue: str = ""
    period: str = ""
    #: Card to card-hours: `{NVIDIA-H200: 5000h}`.
    cards: dict[str, str] | None = None
    when_spent: str | None = None


class CardBudgetStatus(ApiStruct, frozen=True):
    observed_generation: int | None = None
    period_start: str | None = None
    period_end: str | None = None
    used: dict[str, str] | None = None
    remaining: dict[str, str] | None = None
    forecast: str | None = None
    spent: bool | None = None
    conditions: Any = None


class CardBudgetObject(ApiStruct, frozen=True, tag="CardBudget", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: CardBudgetSpec = CardBudgetSpec()
    status: CardBudgetStatus = CardBudgetStatus()


# --- facts ----------------------------------------------------------------------------------------------------------


class CardBudget(msgspec.Struct, frozen=True):
    """One valid CardBudget, with the figures of its status."""

    name: str
    queue: str
    period: str
    when_spent: str
    #: Card to whole card-hours, in order of name.
    limits: dict[str, int]
    #: Card to the used card-hours as text; empty before the first status.
    used: dict[str, str]
    #: The cards whose budget is spent, in order of name.
    spent: tuple[str, ...]
    #: End of the period of the status; "" for a rolling period, and before the first status.
    until: str
    #: Date at which the first card is spent, "" for none in the period.
    forecast: str = ""

    @property
    def span(self) -> str:
        """The period of the use, as the end of a sentence."""
        return "over the last 30 days" if self.period == ROLLING else f"in the period that ends at {self.until}"

    def figures(self, card: str) -> str:
        """`5000.25h of 5000h`."""
        return f"{self.used.get(card, '0.00h')} of {self.limits[card]}h"


class BudgetProblem(NamedTuple):
    """A value that excludes a CardBudget from use."""

    #: Path in the object.
    field: str
    message: str


def card_budget_facts(obj: CardBudgetObject) -> tuple[CardBudget | None, list[BudgetProblem]]:
    """The facts of a CardBudget; None with at least one problem. Never raises."""
    spec, status, problems = obj.spec, obj.status, list(_problems(obj.spec))
    if problems:
        return None, problems
    limits = {card: int(text[:-1]) for card, text in sorted((spec.cards or {}).items())}
    used, remaining = status.used or {}, status.remaining or {}
    valid = {card: text for card, text in sorted(used.items()) if card in limits and _USE.fullmatch(text)}
    spent = tuple(card for card in limits if card in valid and _is_zero(remaining.get(card, "")))
    facts = CardBudget(
        obj.metadata.name,
        spec.queue,
        spec.period,
        spec.when_spent or "warn",
        limits,
        valid,
        spent,
        status.period_end or "" if valid else "",
        status.forecast or "" if valid else "",
    )
    return facts, []


def _is_zero(text: str) -> bool:
    return _USE.fullmatch(text) is not None and not text.strip("0.h")


def _problems(spec: CardBudgetSpec) -> Iterable[BudgetProblem]:
    if not spec.queue:
        yield BudgetProblem("spec.queue", "is required: the name of a Queue")
    if not spec.period:
        yield BudgetProblem("spec.period", f"is required: one of {', '.join(PERIODS)}")
    elif spec.period not in PERIODS:
        yield BudgetProblem("spec.period", f"expected one of {', '.join(PERIODS)}, got {quoted(spec.period)}")
    if spec.when_spent is not None and spec.when_spent not in WHEN_SPENT:
        yield BudgetProblem("spec.whenSpent", f"expected one of {', '.join(WHEN_SPENT)}, got {quoted(spec.when_spent)}")
    if not spec.cards:
        yield BudgetProblem("spec.cards", "is required: at least one card with its card-hours")
    for card, text in sorted((spec.cards or {}).items()):
        if not card.strip() or "|" in card:
            yield BudgetProblem("spec.cards", f"{quoted(card)} is not the name of one card")
        elif not _HOURS.fullmatch(text):
            yield BudgetProblem(_card_path(card), f"{quoted(text)} is not accepted: expected {HOURS_FORM}")


def _card_path(card: str) -> str:
    return f"spec.cards.{card}" if _PLAIN.fullmatch(card) else f'spec.cards["{escaped(card)}"]'


class SpentCard(NamedTuple):
    """A spent card that a job may get."""

    name: str
    #: Whether only pods that do not exist yet may get it.
    by_missing_pods: bool


def spent_card(
    job: Job,
    spent: Collection[str],
    is_card: Callable[[str], bool],
    claimable: Callable[[TaskClass], Collection[str]] = lambda _: (),
    *,
    lacks_pods: bool,
) -> SpentCard | None:
    """The first of the spent cards that a job may get; None for a job without them.

    A job that accepts several cards may get each of them, and one that names none any. `is_card`: whether a resource
    counts cards; `claimable`: the cards that the claims of a pod may get. A job without `volcano.sh/card.request` that
    `lacks_pods` is judged by its minResources too; without minResources, further pods may get any card.
    """
    accepted: set[str] = set()
    try:
        request = parse_card_request(job.annotations.get(CARD_REQUEST))
    except CardSyntaxError:
        return None  # refused by capacity-card, which reports it
    for key in request:
        accepted.update(key.split("|"))
    for cls in job.classes:
        if any(amount and is_card(name) for name, amount in cls.requests.items()):
            accepted.update(_named(cls.annotations) or spent)
        if cls.claims:
            accepted.update(claimable(cls))
    if found := accepted.intersection(spent):
        return SpentCard(min(found), by_missing_pods=False)
    least = job.min_resources
    if request or not lacks_pods or not spent:
        return None
    if least is None or any(amount and is_card(name) for name, amount in least.items()):
        return SpentCard(min(spent), by_missing_pods=True)
    return None


def _named(annotations: Mapping[str, str]) -> tuple[str, ...]:
    try:
        return parse_card_name(annotations.get(CARD_NAME) or annotations.get(CARD_NAME_ALIAS))
    except CardSyntaxError:
        return ()


def covers(budgeted: str, queue: str, parent: Callable[[str], str | None]) -> bool:
    """Whether a queue is the budgeted one or below it, as of `covering`."""
    return budgeted in covering(queue, parent)


def covering(queue: str, parent: Callable[[str], str | None]) -> Mapping[str, None]:
    """The queues whose budgets cover a queue, from itself upwards: root covers all.

    `parent`: the parent of a queue, "" for root, None for a queue that does not exist.
    """
    found: dict[str, None] = {}
    above: str | None = queue
    while above is not None and above not in found:
        found[above] = None
        above = parent(above)
        above = ROOT if above == "" else above
    found[ROOT] = None
    return found


# --- status ---------------------------------------------------------------------------------------------------------


class BudgetPeriod(NamedTuple):
    """Unix milliseconds; `end` is None for a rolling period."""

    begin: int
    end: int | None


def period_at(period: str, now: int) -> BudgetPeriod:
    """The period with the moment `now` (Unix milliseconds). Months and weeks, from Monday on, are those of UTC."""
    if period == ROLLING:
        return BudgetPeriod(now - _WINDOW, None)
    day = _MIDNIGHT + timedelta(days=now // _DAY)
    if period == "week":
        first = day - timedelta(days=day.weekday())
        after = first + timedelta(days=7)
    else:
        first = day.replace(day=1)
        after = (first + timedelta(days=32)).replace(day=1)
    return BudgetPeriod(_millis(first), _millis(after))


def _millis(moment: datetime) -> int:
    return (moment - _MIDNIGHT) // timedelta(milliseconds=1)


def hours_text(use: int) -> str:
    """Use as card-hours: `4990.25h`."""
    hundredths = max(0, use) // _HUNDREDTH
    return f"{hundredths // 100}.{hundredths % 100:02}h"


def use_of(text: str) -> int:
    """Units of use of card-hours as text; 0 for a malformed one."""
    match = _USE.fullmatch(text)
    return 0 if match is None else int(match[1]) * CARD_HOUR + int(match[2] or 0) * _HUNDREDTH


class BudgetUse(NamedTuple):
    """Use in the period at a moment, and the cards that are held then: units, and thousandths, by card."""

    used: Mapping[str, int]
    held: Mapping[str, int]


def spent_at(budget: CardBudget, use: BudgetUse, now: int) -> int | None:
    """The moment at which the first further card is spent while the held cards stay held; None for never.

    Of a rolling period the earliest such moment: use that leaves the window is not subtracted.
    """
    found = None
    for card, hours in budget.limits.items():
        left, held = hours * CARD_HOUR - use.used.get(card, 0), use.held.get(card, 0)
        if left > 0 and held > 0:
            moment = now + -(-left // held)
            found = moment if found is None else min(found, moment)
    return found


def budget_status(budget: CardBudget, use: BudgetUse, now: int, generation: int | None) -> dict[str, Any]:
    """The status at a moment, as JSON, without conditions. `now`: Unix milliseconds."""
    period = period_at(budget.period, now)
    used = {card: use.used.get(card, 0) for card in budget.limits}
    texts = {card: hours_text(amount) for card, amount in used.items()}
    remaining = {card: hours_text(hours * CARD_HOUR - use_of(texts[card])) for card, hours in budget.limits.items()}
    status: dict[str, Any] = {
        "periodStart": format_timestamp(period.begin / 1000),
        "used": texts,
        "remaining": remaining,
        "spent": any(map(_is_zero, remaining.values())),
    }
    if generation is not None:
        status["observedGeneration"] = generation
    if period.end is not None:
        status["periodEnd"] = format_timestamp(period.end / 1000)
    expected = spent_at(budget, use, now)
    if expected is not None and (period.end is None or expected < period.end):
        status["forecast"] = format_timestamp(expected / 1000)
    return status


def with_condition(status: dict[str, Any], before: Mapping[str, Any], now: int) -> dict[str, Any]:
    """The status with the condition Spent, whose transition time changes with its status only.

    `before`: the former status, as JSON of any form.
    """
    cards = [card for card, text in status["remaining"].items() if _is_zero(text)]
    is_spent, known = ("True" if cards else "False"), before.get("conditions")
    former = [one for one in known if isinstance(one, dict)] if isinstance(known, list) else []
    kept = next((one for one in former if one.get("type") == "Spent" and one.get("status") == is_spent), {})
    condition = {
        "type": "Spent",
        "status": is_spent,
        "reason": "BudgetSpent" if cards else "WithinBudget",
        "message": f"spent: {', '.join(cards)}" if cards else "no card is spent",
        "lastTransitionTime": str(kept.get("lastTransitionTime") or format_timestamp(now / 1000)),
    }
    return {**status, "conditions": [*(one for one in former if one.get("type") != "Spent"), condition]}


def status_patch(status: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch from one status to another: absent fields and cards are null."""
    patch: dict[str, Any] = {**dict.fromkeys(before), **status}
    for field in ("used", "remaining"):
        known = before.get(field)
        patch[field] = {**(dict.fromkeys(known) if isinstance(known, dict) else {}), **status[field]}
    return patch


def base_use(obj: CardBudgetObject, budget: CardBudget, now: int) -> dict[str, int]:
    """Units of use by card that the status of an object states for the period with `now`; none of another period."""
    start = round(parse_time(obj.status.period_start) * 1000)
    period = period_at(budget.period, now)
    is_current = start > period.begin - _DAY if period.end is None else start == period.begin
    return {card: use_of(text) for card, text in budget.used.items()} if is_current else {}
