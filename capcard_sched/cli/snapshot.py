"""`capcard-sched snapshot`: saves a live cluster as manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from capcard_sched.cli.exit_codes import BadInputError, usage_error
from capcard_sched.cli.output import put_error
from capcard_sched.cli.sources.load import live_input
from capcard_sched.cli.sources.source import INSTALLED_CONF, CacheFlag, Source
from capcard_sched.daemon.diagnosis.saved_state import document_text, manifests_of
from capcard_sched.model.quoting import plural


def snapshot(
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], metavar="FILE")],
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"], show_default=False, metavar="NAME")] = "",
    kubeconfig: Path | None = None,
    context: Annotated[str, Parameter(show_default=False, metavar="NAME")] = "",
    installed_conf: Annotated[str, Parameter(metavar="NAMESPACE/NAME")] = INSTALLED_CONF,
    cache: CacheFlag = None,
) -> int:
    """Save a live cluster as one List of manifests that `-f` of every command reads. Writes nothing to the cluster.

    The file has the objects that the scheduler reads, each with the fields that it reads: no Secrets, no ConfigMaps,
    no environment variables. The time and the installed scheduler-conf are in its field `savedState`. The Jobs,
    Deployments and some events are in its field `explained`: `explain` and the lists read them, simulations do not.

    Exit status: 0 when the file is written; 2 on bad input or an unreachable API server; 1 on an internal error.

    Args:
        output: File to write.
        namespace: The namespace to read without rights in all of them. Default: that of the kubeconfig's context.
        kubeconfig: Kubeconfig file. Default: the one kubectl uses.
        context: Context of the kubeconfig. Default: its current context.
        installed_conf: ConfigMap that holds the installed scheduler-conf.
        cache: Socket of `capcard-sched cache`: it reads from memory. Default: $CAPCARD_SCHED_CACHE.
    """
    source = Source(kubeconfig=kubeconfig, context=context, installed_conf=installed_conf, cache=cache)
    try:
        given = live_input(source, namespace)
        settings = given.read()
        items, explained = manifests_of(given.deltas), given.fetch_explained()
        output.write_bytes(document_text(settings, items, explained))
    except BadInputError as error:
        return usage_error(str(error))
    except OSError as error:
        return usage_error(f"{error.filename or output}: {error.strerror or error}")
    put_error(f"wrote {plural(len(items) + len(explained), 'object')} to {output}")
    return 0
