"""`capcard-sched queue`: quotas and usage of queues."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import cyclopts
from cyclopts import Parameter

from capcard_sched.cli.cluster_source import Source, load_cluster
from capcard_sched.cli.exit_codes import usage_error
from capcard_sched.cli.simulate import BadInputError

app = cyclopts.App(name="queue", help="Show and change queues.", result_action="return_value")
for _verb in ("get", "create", "open", "close", "update", "delete"):
    app.command(f"capcard_sched.cli.queue_commands:{_verb}_queue", name=_verb)


@app.command(name="list", usage="capcard-sched queue list [OPTIONS] [NAMES...]")
def list_queues(
    *names: str,
    output: Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"])] = "table",
    source: Source = Source(),  # noqa: B008 - frozen
) -> int:
    """List queues with quota, allocated, reserved and free amounts per card and resource.

    With -f, runs the manifests through the simulator first. Without -f, reads a live cluster; writes nothing.

    Exit status: 0; 2 on bad input or an unknown queue; 1 on an internal error.

    Args:
        names: Queues to list. Default: all.
        output: Output format.
        source: Flags that select the cluster.
    """
    try:
        found = load_cluster(source, read_only=True)
    except BadInputError as error:
        return usage_error(str(error))
    from capcard_sched.framework.explain.queue_uses import queue_uses

    uses = queue_uses(found.core)
    existing = {use.name for use in uses}
    unknown = [name for name in names if name not in existing]
    if unknown:
        return usage_error(f"no such queue: {', '.join(unknown)}; existing queues: {', '.join(sorted(existing))}")
    shown = [use for use in uses if not names or use.name in names]
    if output == "json":
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode() + "\n")
    else:
        from capcard_sched.reports.queues import print_queues

        print_queues(shown)
    return found.report()
