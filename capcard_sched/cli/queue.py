"""`capcard-sched queue`: what queues may use, and use."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import cyclopts
from cyclopts import Parameter

from capcard_sched.cli.cluster_source import Source, scene
from capcard_sched.cli.exit_codes import refuse
from capcard_sched.cli.simulate import BadInputError

app = cyclopts.App(name="queue", help="Queues: what they may use, and use.", result_action="return_value")


@app.command(name="list", usage="capcard-sched queue list [OPTIONS] [NAMES...]")
def list_queues(
    *names: str,
    output: Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"])] = "table",
    source: Source = Source(),  # noqa: B008 - frozen
) -> int:
    """List queues: per card and resource the quota, what is allocated, promised to admitted jobs, and free.

    With -f of a cluster that is simulated first, else of a live one, which is only read.

    Exit status: 0; 2 on bad input or an unknown queue; 1 on an internal error.

    Args:
        names: Queues to list; all when absent.
        output: What to print.
        source: The cluster, and how to look at it.
    """
    try:
        found = scene(source, as_it_stands=True)
    except BadInputError as error:
        return refuse(str(error))
    from capcard_sched.framework.explain import queue_uses

    uses = queue_uses(found.core)
    known = {use.name for use in uses}
    unknown = [name for name in names if name not in known]
    if unknown:
        return refuse(f"no such queue: {', '.join(unknown)}; there are: {', '.join(sorted(known))}")
    shown = [use for use in uses if not names or use.name in names]
    if output == "json":
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode() + "\n")
    else:
        from capcard_sched.reports.queues import print_queues

        print_queues(shown)
    return found.report()
