"""Checks of `spec.plugins` of a vcjob: plugins, their arguments, and the tasks that the arguments name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capcard_sched.model.job_plugins import JOB_PLUGINS, parse_plugin_arguments
from capcard_sched.validation.checks import Finding, listed
from capcard_sched.validation.inventory import as_map
from capcard_sched.validation.job_structure import task_name, tasks_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from capcard_sched.validation.inventory import Json


def check_job_plugins(spec: Json) -> Iterator[Finding]:
    """Unknown plugins, arguments without effect, and roles of `mpi` without a task."""
    for name, raw in as_map(spec.get("plugins")).items():
        field = f"spec.plugins.{name}"
        if name not in JOB_PLUGINS:
            yield Finding("error", field, f"unable to find job plugin: {name}", ", ".join(sorted(JOB_PLUGINS)))
            continue
        words = [word for word in raw if isinstance(word, str)] if isinstance(raw, list) else []
        arguments = parse_plugin_arguments(name, words)
        for entry in arguments.ignored:
            # A warning: a Job of Volcano runs with them.
            yield Finding("warning", f"{field}[{entry.place}]", entry.message, entry.accepted)
        if name == "mpi":
            yield from _check_mpi(spec, arguments.values)


def _check_mpi(spec: Json, values: Mapping[str, Any]) -> Iterator[Finding]:
    """A job without workers runs in its master; a worker task that is named must exist."""
    names = {task_name(task, index) for index, task in enumerate(tasks_of(spec))}
    for role in ("master", "worker"):
        is_default = role == "worker" and values[role] == JOB_PLUGINS["mpi"].arguments[role].default
        if values[role] not in names and not is_default:
            message = f"The specified mpi {role} task was not found"
            yield Finding("error", "spec.plugins.mpi", message, f"--{role}= with one of {listed(names)}")
