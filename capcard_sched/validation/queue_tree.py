"""Amounts of queues against those of the queues above and below them, as Volcano's webhook compares them.

The capability of a queue is at most that of the nearest ancestor that has the resource. The sums of what the queues
directly below a queue deserve, and of their guarantees, are at most its own amounts, where it has the resource.
NamespaceQueues do not limit the Queues above them: one whose amounts do not fit is not ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from capcard_sched.model.quantity import QuantityError, base_amount, format_amount
from capcard_sched.model.queue import ROOT
from capcard_sched.validation.checks import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Field of the amounts to its path in the spec of a Queue.
PATHS: Final = {"capability": "spec.capability", "deserved": "spec.deserved", "guarantee": "spec.guarantee.resource"}
#: Queues of a finding that are named.
_NAMED: Final = 4


class QueueAmounts(NamedTuple):
    """Resource to amount in base units."""

    capability: Mapping[str, int]
    deserved: Mapping[str, int]
    guarantee: Mapping[str, int]


NO_AMOUNTS: Final = QueueAmounts({}, {}, {})


def amounts_of(spec: Mapping[str, Any]) -> QueueAmounts:
    """The amounts in the spec of a Queue; invalid and negative ones count as absent."""
    guarantee = spec.get("guarantee")
    reserved = guarantee.get("resource") if isinstance(guarantee, dict) else None
    return QueueAmounts(_amounts(spec.get("capability")), _amounts(spec.get("deserved")), _amounts(reserved))


def _amounts(raw: object) -> dict[str, int]:
    found = {}
    for resource, quantity in raw.items() if isinstance(raw, dict) else ():
        try:
            amount = base_amount(resource, quantity)
        except (QuantityError, TypeError, AttributeError):
            continue
        if amount is not None and amount >= 0:
            found[str(resource)] = amount
    return found


class QueueTree:
    """Parents and amounts of queues. A queue may name a parent that is unknown."""

    def __init__(self) -> None:
        self._amounts: dict[str, QueueAmounts] = {}
        self._parents: dict[str, str] = {}
        self._children: dict[str, dict[str, None]] = {}

    def set_queue(self, name: str, parent: str, amounts: QueueAmounts) -> None:
        """Add or replace a queue."""
        self.drop_queue(name)
        self._amounts[name] = amounts
        if name != ROOT:
            self._parents[name] = parent
            self._children.setdefault(parent, {})[name] = None

    def drop_queue(self, name: str) -> None:
        """Remove a queue; one that is unknown is ignored."""
        self._amounts.pop(name, None)
        parent = self._parents.pop(name, None)
        if parent is not None:
            self._children[parent].pop(name, None)

    def instead(self, name: str, parent: str, amounts: QueueAmounts) -> QueueTree:
        """A copy in which a queue has another parent and other amounts; this tree stays, wherever a check ends."""
        copy = QueueTree()
        copy._amounts, copy._parents = {**self._amounts}, {**self._parents}
        copy._children = {queue: {**children} for queue, children in self._children.items()}
        copy.set_queue(name, parent, amounts)
        return copy

    def below_ancestors(self, name: str) -> Iterator[Finding]:
        """Capabilities of a queue above that of an ancestor."""
        for resource, amount in self._of(name).capability.items():
            for ancestor in self._ancestors(name):
                limit = self._of(ancestor).capability.get(resource)
                if limit is not None:
                    if amount > limit:
                        upper, own = format_amount(resource, limit), format_amount(resource, amount)
                        message = f"capability {own} is more than the {upper} of queue {ancestor}"
                        yield Finding("error", f'{PATHS["capability"]}["{resource}"]', message, f"at most {upper}")
                    break

    def above_descendants(self, name: str) -> Iterator[Finding]:
        """Capabilities of queues below a queue above its own, where no queue between them has the resource."""
        for resource, limit in self._of(name).capability.items():
            open_queues, seen = [*self._children.get(name, ())], {name}
            while open_queues:
                child = open_queues.pop(0)
                amount = self._of(child).capability.get(resource)
                if amount is None and child not in seen:
                    open_queues += self._children.get(child, ())
                elif amount is not None and amount > limit:
                    lower, own = format_amount(resource, amount), format_amount(resource, limit)
                    message = f"capability {own} is less than the {lower} of queue {child} below it"
                    yield Finding("error", f'{PATHS["capability"]}["{resource}"]', message, f"at least {lower}")
                seen.add(child)

    def sums_below(self, name: str) -> Iterator[Finding]:
        """Sums of the deserved amounts and guarantees of the queues directly below a queue above its own."""
        for field in ("deserved", "guarantee"):
            for resource, total, text in self._exceeded(name, field):
                place = f'{PATHS[field]}["{resource}"]'
                yield Finding("error", place, text, f"at least {format_amount(resource, total)}")

    def sums_beside(self, name: str) -> Iterator[Finding]:
        """The same of its parent, as findings about a queue that is part of the sum."""
        parent = self._parents.get(name, ROOT)
        for field in ("deserved", "guarantee"):
            for resource, _, text in self._exceeded(parent, field):
                if resource in getattr(self._of(name), field):
                    yield Finding("error", f'{PATHS[field]}["{resource}"]', text, "a smaller amount")

    def _exceeded(self, name: str, field: str) -> Iterator[tuple[str, int, str]]:
        """Each resource of a field of which the children have more than the queue, their sum, and a text."""
        limits: Mapping[str, int] = getattr(self._of(name), field)
        for resource, limit in limits.items():
            shares = {child: getattr(self._of(child), field).get(resource, 0) for child in self._children.get(name, ())}
            total = sum(shares.values())
            if total > limit:
                parts = [f"{child} {format_amount(resource, share)}" for child, share in shares.items() if share]
                more = f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
                shown, sum_of = format_amount(resource, limit), format_amount(resource, total)
                text = f"queue {name} has {field} {shown}, the queues below it together {sum_of}"
                yield resource, total, f"{text} ({', '.join(parts[:_NAMED])}{more})"

    def _of(self, name: str) -> QueueAmounts:
        return self._amounts.get(name, NO_AMOUNTS)

    def _ancestors(self, name: str) -> Iterator[str]:
        """Nearest first; a cycle ends."""
        seen = {name}
        while (name := self._parents.get(name, ROOT)) not in seen:
            yield name
            if name == ROOT:
                return
            seen.add(name)
