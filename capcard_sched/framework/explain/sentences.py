"""Parts of the sentences of a diagnosis: amounts, lists of names, users of limits."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final

from capcard_sched.model.diagnosis import MOST_LISTED, LimitUse
from capcard_sched.model.quantity import shown_amount
from capcard_sched.model.quoting import brief, escaped, with_singulars
from capcard_sched.model.selectors import BLOCKING_EFFECTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capcard_sched.model.diagnosis import CardCapacity, HolderUse

#: Similarity above which a name is suggested.
_CLOSE: Final = 0.6
#: Letters of the shortest name that a longer one contains as a word.
_SHORTEST: Final = 3
_BRACKETS = re.compile(r"<([^<>]*)>")
#: The plugin of kube-scheduler that checks a pod before its nodes.
_PRE_PREDICATE = re.compile(r"plugin \w+ pre-predicates failed ")


def amount_of(resource: str, value: float | None) -> str:
    """An amount without its resource; bytes with their unit."""
    return "no limit" if value is None else shown_amount(resource, value)


def quantity(resource: str, value: float | None) -> str:
    """`8 NVIDIA-H200`, `12 cpu`, `16Gi memory`, `1 pod`."""
    return with_singulars(f"{amount_of(resource, value)} {resource}")


def amounts(resource: str, used: float, quota: float | None) -> str:
    """`4 of 8 NVIDIA-H200`."""
    if quota is None:
        return quantity(resource, used)
    return f"{amount_of(resource, used)} of {quantity(resource, quota)}"


def form(count: float, one: str, many: str) -> str:
    """The form of a verb whose subject is a number."""
    return one if count == 1 else many


def holders(row: LimitUse | CardCapacity, found: Sequence[HolderUse]) -> str:
    """`default/job/hog of queue a (16), ...`, the largest first; without the queue in a row of that queue."""
    resource, own = (row.resource, row.queue) if isinstance(row, LimitUse) else (row.card, "")
    shown = [
        f"{one.workload}{f' of queue {one.queue}' if one.queue not in {'', own} else ''} "
        f"({amount_of(resource, one.amount)})"
        for one in found
    ]
    return brief(shown) if len(found) < MOST_LISTED else f"{', '.join(shown[:4])} and others"


def nearest(name: str, known: Iterable[str]) -> str:
    """The most similar known name, regardless of case; "" when none is similar."""
    folded = {other.casefold(): other for other in known}
    longer = [other for other in folded if name.casefold() in other.split("-", 1)[-1:]]
    if not longer and len(name) >= _SHORTEST:  # `A100` of `NVIDIA-A100-80GB`
        longer = [other for other in folded if f"-{name.casefold()}-" in other]
    if len(longer) == 1:  # `H200` of `NVIDIA-H200`
        return folded[longer[0]]
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=_CLOSE)
    return folded[close[0]] if close else ""


def hint(name: str, known: Iterable[str]) -> str:
    """`; did you mean data?`: the end of a sentence about a name that does not exist; "" if none is similar."""
    close = nearest(name, known)
    return f"; did you mean {escaped(close)}?" if close else ""


def plain(text: str) -> str:
    """An event's text without the angle brackets of its values, and without the plugin of a check of the pod."""
    return _BRACKETS.sub(r"\1", _BRACKETS.sub(r"\1", _PRE_PREDICATE.sub("", text))).rstrip(".")


def capital(text: str) -> str:
    """With an upper-case first letter, unless the first word is a field such as minAvailable."""
    first, *_ = text.split(" ", 1)
    return text if first != first.lower() else text[:1].upper() + text[1:]


def lower(text: str) -> str:
    """With a lower-case first letter, unless the first word is a name such as NamespaceQueue."""
    first, *_ = text.split(" ", 1)
    return text if first[1:] != first[1:].lower() else text[:1].lower() + text[1:]


def toleration(taint: str) -> str:
    """The toleration of a taint `key=value:effect`."""
    plain_taint, _, effect = taint.rpartition(":")
    key, equals, value = plain_taint.partition("=")
    assert effect in BLOCKING_EFFECTS
    operator = f"operator: Equal, value: {value}" if equals else "operator: Exists"
    return f"{{key: {key}, {operator}, effect: {effect}}}"


def users(row: LimitUse | None, own: str) -> list[str]:
    """The users of a limit, and the reservations of other jobs. `own`: the workload of the job in question."""
    if row is None:
        return []
    facts = []
    if row.users:
        facts.append(f"{row.resource} used in queue {row.queue}: {holders(row, row.users)}")
    if reserved := [one for one in row.reservations if one.workload != own]:
        facts.append(f"{row.resource} of queue {row.queue} admitted, not yet running: {holders(row, reserved)}")
    return facts


def distinct(facts: Sequence[str]) -> list[str]:
    """The facts without repetitions, also of the beginning of a fact with figures: `h2 is cordoned (8 of 8 free)`."""
    return [fact for fact in dict.fromkeys(facts) if not any(each.startswith(f"{fact} (") for each in facts)]
