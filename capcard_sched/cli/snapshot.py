"""`capcard-sched snapshot`: saves a live cluster as manifests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from capcard_sched.cli.cluster_source import INSTALLED_CONF, Source, read_live
from capcard_sched.cli.exit_codes import usage_error
from capcard_sched.cli.simulate import BadInputError


def snapshot(
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], metavar="FILE")],
    kubeconfig: Path | None = None,
    context: Annotated[str, Parameter(show_default=False, metavar="NAME")] = "",
    installed_conf: Annotated[str, Parameter(metavar="NAMESPACE/NAME")] = INSTALLED_CONF,
) -> int:
    """Save a live cluster as one List of manifests that `-f` of every command reads. Writes nothing to the cluster.

    The file has the objects that the scheduler reads, each with the fields that it reads: no Secrets, no ConfigMaps,
    no environment variables. The installed scheduler-conf is written beside it, with the suffix `.conf.yaml`.

    Exit status: 0 when the file is written; 2 on bad input or an unreachable API server; 1 on an internal error.

    Args:
        output: File to write.
        kubeconfig: Kubeconfig file. Default: the one kubectl uses.
        context: Context of the kubeconfig. Default: its current context.
        installed_conf: ConfigMap that holds the installed scheduler-conf.
    """
    from capcard_sched.insight.object_view import as_manifest
    from capcard_sched.model.deltas import ObjectChanged
    from capcard_sched.model.kinds import kind_of_object
    from capcard_sched.simulation.output import to_json

    try:
        found = read_live(Source(kubeconfig=kubeconfig, context=context, installed_conf=installed_conf))
    except BadInputError as error:
        return usage_error(str(error))
    objects = [delta.object for delta in found.deltas if isinstance(delta, ObjectChanged)]
    items = [as_manifest(kind_of_object(obj), obj) for obj in objects]
    conf_file = output.with_name(f"{output.name}.conf.yaml")
    try:
        output.write_text(to_json({"apiVersion": "v1", "kind": "List", "items": items}), "utf-8")
        if found.conf is not None:
            conf_file.write_text(found.conf, "utf-8")
    except OSError as error:
        return usage_error(f"{error.filename or output}: {error.strerror or error}")
    also = f" and {conf_file}" if found.conf is not None else ""
    print(f"wrote {len(items)} objects to {output}{also}", file=sys.stderr)
    return 0
