"""`capcard-sched simulate`: runs the scheduler on an in-memory cluster in virtual time."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from capcard_sched.cli.exit_codes import FailureWatch, Files, usage_error
from capcard_sched.cli.output import put, put_error, put_json
from capcard_sched.controllers.objects import ROOT_QUEUE
from capcard_sched.daemon.diagnosis.saved_state import SavedStateError, saved_settings
from capcard_sched.model.timestamps import SPAN_FORM, DurationError, parse_span
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.scenario import DEFAULT_SCHEDULERS, InputError, SimulationOptions
from capcard_sched.webhook.connect import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.daemon.diagnosis.saved_state import SavedSettings
    from capcard_sched.framework.conf.registry import Registry
    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.framework.core import Core
    from capcard_sched.reports.progress import SimulationProgress
    from capcard_sched.simulation.run import SimulationOutcome

#: The scheduler-conf of a saved state, in messages.
CONF_IN_FILE: Final = "savedState.schedulerConf"


class BadInputError(Exception):
    """Invalid flag or file; the text is printed."""


def simulate(
    *,
    file: Files = (),
    scheduler_conf: Path | None = None,
    until: Annotated[str | None, Parameter(allow_leading_hyphen=True, metavar="DURATION")] = None,
    output: Annotated[Literal["table", "json", "yaml"], Parameter(name=["--output", "-o"])] = "table",
    schedule_period: Annotated[str, Parameter(allow_leading_hyphen=True, metavar="DURATION")] = "1s",
    scheduler_name: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False, metavar="NAME")] = (),
    default_queue: Annotated[str, Parameter(metavar="NAME")] = "default",
    plugins_dir: Path | None = None,
    timeline: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Run manifests through the scheduler on an in-memory cluster, in virtual time.

    Manifests exist from the start; a Scenario object adds a timeline of changes. Connects to nothing.

    Exit status: 0 when the simulation completed, also with pending pods; 2 on bad input; 1 on an internal error.

    Args:
        file: File, folder or `-` for standard input, YAML or JSON. Repeatable.
        scheduler_conf: Scheduler-conf file. Default: that of a saved state in the input, else the built-in one.
        until: Stop at this virtual time, such as 10m. Default: when no further change is possible.
        output: Output format: a summary table, or all objects at the end as one List.
        schedule_period: Virtual time between sessions.
        scheduler_name: Schedule pods with this `schedulerName`. Repeatable. Default: capcard-sched and volcano.
        default_queue: Queue of PodGroups that name none; created if it does not exist.
        plugins_dir: Folder with additional plugins and actions.
        timeline: Also show cards in use over time, waiting times, and jobs blocked by quota; on standard error with
            -o json and -o yaml.
    """
    from capcard_sched.simulation.scenario_reader import load_scenario

    try:
        settings = settings_of(file)
        options = options_of(until, schedule_period, scheduler_name, default_queue, settings)
        if not file:
            raise BadInputError("-f is required: a file, a folder or - for standard input")
        scenario = load_scenario(file, existing_queues=(ROOT_QUEUE, options.default_queue))
        scheduler = build_core(scheduler_conf, plugins_dir, options, settings)
    except (BadInputError, InputError) as error:
        return usage_error(str(error))
    from capcard_sched.gc import settle_memory
    from capcard_sched.reports.recording import Recorder
    from capcard_sched.simulation.run import simulate as run

    settle_memory()
    recorder = Recorder(scheduler.snapshot().state.card_labels) if timeline else None
    watched = FailureWatch(scheduler, recorder)
    bar = _progress_bar()
    try:
        outcome = run(scenario, watched, options, None if bar is None else bar.update)
    except InputError as error:
        return usage_error(str(error))
    finally:
        if bar is not None:
            bar.close()
    for warning in (*outcome.warnings, *watched.warnings):
        put_error(f"warning: {warning}")
    _show(outcome, output, scheduler)
    if recorder is not None:
        from capcard_sched.reports.timeline import print_timeline, timeline_of

        recorder.finish(EPOCH + outcome.end / SECOND)
        print_timeline(timeline_of(recorder), to_stderr=output != "table")
    return watched.report()


def settings_of(files: Sequence[str]) -> SavedSettings | None:
    """The settings of the first saved state among files; None without one. Raises BadInputError."""
    try:
        return next(filter(None, map(saved_settings, map(Path, files))), None)
    except SavedStateError as error:
        raise BadInputError(str(error)) from None


def options_of(
    until: str | None,
    period: str,
    names: tuple[str, ...],
    default_queue: str,
    settings: SavedSettings | None = None,
) -> SimulationOptions:
    """The run options from the flags, and from the settings of a state. Raises BadInputError."""
    moments = {"until": None if until is None else _moment("--until", until)}
    step = _moment("--schedule-period", period)
    if not step:
        raise BadInputError(f"--schedule-period: {period!r}: must be > 0, expected {SPAN_FORM}")
    if any(not name for name in names):
        raise BadInputError("--scheduler-name: must not be empty")
    if not default_queue:
        raise BadInputError("--default-queue: must not be empty")
    chosen, end = tuple(dict.fromkeys(names)), moments["until"]
    if settings is None:
        return SimulationOptions(chosen or DEFAULT_SCHEDULERS, default_queue, step, end, time.time())
    begin = round((settings.now - EPOCH) * SECOND)
    until_then = None if end is None else begin + end
    names, queue = chosen or settings.scheduler_names, settings.default_queue
    return SimulationOptions(names, queue, step, until_then, settings.now, begin)


def _moment(flag: str, text: str) -> int:
    try:
        return parse_span(text)
    except DurationError as error:
        raise BadInputError(f"{flag}: {error}: expected {SPAN_FORM}") from None


def build_core(
    conf_path: Path | None,
    plugins_dir: Path | None,
    options: SimulationOptions,
    settings: SavedSettings | None = None,
    conf_name: str = CONF_IN_FILE,
) -> Core:
    """A core with the scheduler-conf of a file, else that of the settings, else the built-in one.

    `conf_name` names that of the settings in messages. Raises BadInputError.
    """
    from capcard_sched.framework.conf.registry import Registry, RegistryError
    from capcard_sched.framework.conf.scheduler_conf import default_conf
    from capcard_sched.framework.core import Core

    text = None if conf_path is None else conf_text(conf_path)
    try:
        registry = Registry.load(plugins_dir)
    except RegistryError as error:
        raise BadInputError(str(error)) from None
    if text is not None:
        conf = valid_conf(text, str(conf_path), registry)
    elif settings is not None and settings.scheduler_conf:
        conf = valid_conf(settings.scheduler_conf, conf_name, registry)
    else:
        conf = default_conf(registry)
    return Core(
        conf, registry, scheduler_names=options.scheduler_names, default_queue=options.default_queue, webhooks=connect
    )


def conf_text(path: Path) -> bytes:
    """The text of a scheduler-conf file. Raises BadInputError."""
    from capcard_sched.simulation.manifests import read_file

    try:
        return read_file(path)
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror or error}") from None


def valid_conf(text: str | bytes, where: str, registry: Registry) -> Conf:
    """The scheduler-conf of a text; prints its problems. Raises BadInputError."""
    from capcard_sched.framework.conf.scheduler_conf import parse_conf

    result = parse_conf(text, registry=registry)
    for problem in result.problems:
        put_error(f"{problem.severity}: {where}: {problem.render()}")
    if result.conf is None:
        raise BadInputError(f"{where}: invalid scheduler-conf")
    return result.conf


def _progress_bar() -> SimulationProgress | None:
    """The progress bar of a terminal."""
    if not sys.stderr.isatty():
        return None
    from capcard_sched.reports.progress import SimulationProgress

    return SimulationProgress()


def _show(outcome: SimulationOutcome, output: str, scheduler: Core) -> None:
    from capcard_sched.simulation.manifests import as_list, to_json, to_yaml

    document = as_list(outcome.store)
    if output == "json":
        put_json(to_json(document), end="")
    elif output == "yaml":
        put(to_yaml(document), end="")
    else:
        from capcard_sched.framework.explain.limits import card_uses
        from capcard_sched.reports.overview import EvictionRow, survey
        from capcard_sched.reports.tables import print_overview

        evictions = [
            EvictionRow((one.at - outcome.begin) / SECOND, f"{one.namespace}/{one.pod}", one.node, one.message)
            for one in outcome.evictions
        ]
        start = EPOCH + outcome.begin / SECOND
        snapshot = scheduler.snapshot()
        state, has_cards = snapshot.state, "capacity-card" in snapshot.conf.quota_plugins.names
        accounts = None if snapshot.session is None else card_uses(snapshot) if has_cards else {}
        now = start + outcome.elapsed
        overview = survey(document["items"], now, start, evictions, state.shares, state.card_labels, accounts)
        print_overview(overview)
