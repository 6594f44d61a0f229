"""The core and the options of a simulation from flags and files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from capcard_sched.cli.exit_codes import BadInputError
from capcard_sched.cli.output import put_error
from capcard_sched.daemon.diagnosis.saved_state import SavedStateError, saved_settings
from capcard_sched.model.autoscaling import DEFAULT_AUTOSCALING, AutoscalingOptions
from capcard_sched.model.timestamps import SPAN_FORM, DurationError, parse_span
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.scenario import DEFAULT_SCHEDULERS, SimulationOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.cli.sources.source import Source
    from capcard_sched.daemon.diagnosis.saved_state import SavedSettings
    from capcard_sched.framework.conf.registry import Registry
    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.framework.core import Core

#: The scheduler-conf of a saved state, in messages.
CONF_IN_FILE: Final = "savedState.schedulerConf"


def settings_of(files: Sequence[str]) -> SavedSettings | None:
    """The settings of the first saved state among files; None without one. Raises BadInputError."""
    try:
        return next(filter(None, map(saved_settings, map(Path, files))), None)
    except SavedStateError as error:
        raise BadInputError(str(error)) from None


def options_of(source: Source, settings: SavedSettings | None = None, *, simulated: bool = False) -> SimulationOptions:
    """The run options from the flags, and from the settings of a state; without `simulated` no others are checked.

    Raises BadInputError.
    """
    names, default_queue = source.scheduler_name, source.default_queue
    until, period = (source.until, source.schedule_period) if simulated else (None, "1s")
    end = None if until is None else _moment("--until", until)
    step = _moment("--schedule-period", period)
    if not step:
        raise BadInputError(f"--schedule-period: {period!r}: must be > 0, expected {SPAN_FORM}")
    if any(not name for name in names):
        raise BadInputError("--scheduler-name: must not be empty")
    if not default_queue:
        raise BadInputError("--default-queue: must not be empty")
    chosen = tuple(dict.fromkeys(names))
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
    *,
    autoscaling: AutoscalingOptions = DEFAULT_AUTOSCALING,
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
        conf,
        registry,
        scheduler_names=options.scheduler_names,
        default_queue=options.default_queue,
        calls_webhooks=True,
        autoscaling=autoscaling,
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
