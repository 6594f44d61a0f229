"""`capcard-sched card` and `capcard-sched node`: cards and nodes, used and free."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import cyclopts
from cyclopts import Parameter

from capcard_sched.cli.cluster_source import Source, load_cluster
from capcard_sched.cli.exit_codes import usage_error
from capcard_sched.cli.live_objects import OutputFlag, print_document, print_table
from capcard_sched.cli.simulate import BadInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.cli.live_objects import Output
    from capcard_sched.model.diagnosis import HolderUse

_SortBy: TypeAlias = Annotated[str, Parameter(show_default=False, metavar="COLUMN")]
_Row: TypeAlias = dict[str, Any]

card_app = cyclopts.App(name="card", help="List the cards of nodes.", result_action="return_value")
node_app = cyclopts.App(name="node", help="List nodes.", result_action="return_value")

#: Columns of a table, and further ones of `-o wide`: header to field.
_CARD: Final = {"NODE": "node", "CARD": "card", "TOTAL": "total", "USED": "used", "FREE": "free", "STATE": "state"}
_CARD_WIDE: Final = {"HOLDERS": "holders"}
_NODE: Final = {"NODE": "node", "STATE": "state", "CARDS": "cards", "TOTAL": "total", "USED": "used", "FREE": "free"}
_NODE_WIDE: Final = {"FREE CPU": "freeCpu", "FREE MEMORY": "freeMemory", "PODS": "pods", "MAX PODS": "maxPods"}


@card_app.command(name="list", usage="capcard-sched card list [OPTIONS] [CARDS...]")
def list_cards(
    *names: str,
    output: OutputFlag = "table",
    sort_by: _SortBy = "",
    source: Source = Source(),  # noqa: B008 - frozen
) -> int:
    """List the cards of each node: total, used, free, and with -o wide the workloads that hold them.

    FREE is also the largest block that one pod can get on the node. With -f, runs the manifests through the simulator
    first. Without -f, reads a live cluster; writes nothing.

    Exit status: 0; 2 on bad input or an unknown card; 1 on an internal error.

    Args:
        names: Cards to list. Default: all.
        output: Output format.
        sort_by: Column to sort by, the largest amount first. Default: node, then card.
        source: Flags that select the cluster.
    """
    from capcard_sched.framework.explain.capacity import CapacityReader

    try:
        found = load_cluster(source, read_only=True)
        uses = CapacityReader(found.core).list_cards()
        known = {card for card, _ in uses}
        unknown = [name for name in names if name not in known]
        if unknown:
            raise BadInputError(f"no such card: {', '.join(unknown)}; existing cards: {', '.join(sorted(known))}")
        rows = [
            {
                "node": use.name,
                "card": card,
                "total": use.total,
                "used": use.total - use.free,
                "free": use.free,
                "state": use.excluded,
                "holders": [_holder(each) for each in use.holders],
            }
            for card, use in uses
            if not names or card in names
        ]
        _show("card", rows, _CARD, _CARD_WIDE, output, sort_by)
    except BadInputError as error:
        return usage_error(str(error))
    return found.report()


@node_app.command(name="list", usage="capcard-sched node list [OPTIONS]")
def list_nodes(
    *,
    output: OutputFlag = "table",
    sort_by: _SortBy = "",
    source: Source = Source(),  # noqa: B008 - frozen
) -> int:
    """List nodes with their cards: total, used and free; with -o wide also free cpu and memory, and pods.

    With -f, runs the manifests through the simulator first. Without -f, reads a live cluster; writes nothing.

    Exit status: 0; 2 on bad input; 1 on an internal error.

    Args:
        output: Output format.
        sort_by: Column to sort by, the largest amount first. Default: node.
        source: Flags that select the cluster.
    """
    from capcard_sched.framework.explain.capacity import CapacityReader

    try:
        found = load_cluster(source, read_only=True)
        rows = [
            {
                "node": node.name,
                "state": node.state,
                "cards": list(node.cards),
                "total": node.total,
                "used": node.total - node.free,
                "free": node.free,
                "freeCpu": node.free_cpu,
                "freeMemory": node.free_memory,
                "pods": node.pods,
                "maxPods": node.max_pods,
            }
            for node in CapacityReader(found.core).list_nodes()
        ]
        _show("node", rows, _NODE, _NODE_WIDE, output, sort_by)
    except BadInputError as error:
        return usage_error(str(error))
    return found.report()


def _holder(use: HolderUse) -> _Row:
    return {"workload": use.workload, "queue": use.queue, "amount": use.amount}


def _show(
    kind: str, rows: Sequence[_Row], columns: dict[str, str], wide: dict[str, str], output: Output, sort_by: str
) -> None:
    """Print rows in the selected format. Raises BadInputError for an unknown column."""
    rows = _sorted(rows, {**columns, **wide}, sort_by)
    if output in {"json", "yaml"}:
        print_document({"kind": f"{kind.capitalize()}List", "items": rows}, output)
    elif output == "name":
        for name in dict.fromkeys(f"{kind}/{row[kind]}" for row in rows):
            print(name)
    elif not rows:
        print("No resources found", file=sys.stderr)
    else:
        shown = {**columns, **(wide if output == "wide" else {})}
        print_table(list(shown), [[_text(field, row[field]) for field in shown.values()] for row in rows])


def _sorted(rows: Sequence[_Row], columns: dict[str, str], sort_by: str) -> list[_Row]:
    if not sort_by:
        return list(rows)
    field = columns.get(sort_by.upper().replace("-", " "))
    if field is None:
        accepted = ", ".join(header.lower().replace(" ", "-") for header in columns)
        raise BadInputError(f"--sort-by: {sort_by!r}: accepted: {accepted}")
    if rows and isinstance(rows[0][field], int | float):
        return sorted(rows, key=lambda row: -row[field])
    return sorted(rows, key=lambda row: str(row[field]))


def _text(field: str, value: Any) -> str:
    if field == "holders":
        return ", ".join(f"{each['workload']} ({each['amount']:g})" for each in value) or "-"
    if field == "cards":
        return ", ".join(value) or "-"
    if field == "freeMemory":
        return f"{value / 2**30:.0f}Gi"
    return f"{value:g}" if isinstance(value, float) else str(value) or "-"
