"""Cards of a live cluster that pods hold and do not use, by the utilization that Prometheus has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.cli.output import put_error
from capcard_sched.model.cards import CARD

if TYPE_CHECKING:
    from capcard_sched.cli.sources.inputs import LoadedCluster


def unused_cards(found: LoadedCluster) -> dict[tuple[str, str], int]:
    """Node and card to the number of unused cards, where the pods of a card are measured.

    Empty without a Prometheus in the scheduler-conf. One that gives no figures is a note on standard error.
    """
    snapshot = found.core.snapshot()
    if not found.given.is_live or not snapshot.conf.metrics:
        return {}
    from capcard_sched.daemon.card_activity import CardMeter
    from capcard_sched.ledger.unused_time import UnmeasuredError

    meter = CardMeter.of_conf(snapshot.conf.metrics)
    if meter is None:
        return {}
    try:
        gpus = meter.gpus()
    except UnmeasuredError as error:
        put_error(f"note: unused cards are not known: {error}")
        return {}
    sums: dict[tuple[str, str], int] = {}
    for name, node in snapshot.state.nodes.by_name.items():
        for card, (_, resource) in snapshot.state.cards_of(node).items():
            for task in node.tasks.values():
                measured = gpus.get((task.namespace, task.name))
                amount = task.cls.requests.get(resource, 0) // CARD
                if measured is not None and amount:
                    sums[name, card] = sums.get((name, card), 0) + min(measured.unused, amount)
    return sums
