"""`capcard-sched simulate`: runs the scheduler on an in-memory cluster in virtual time."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from capcard_sched.cli.exit_codes import BadInputError, FailureWatch, usage_error
from capcard_sched.cli.files import Files
from capcard_sched.cli.output import put, put_error, put_json
from capcard_sched.cli.sources.cores import options_of
from capcard_sched.cli.sources.inputs import LoadedCluster, ManifestInput
from capcard_sched.cli.sources.source import Source
from capcard_sched.model.provisioning import ProvisioningClass
from capcard_sched.simulation.clock import EPOCH, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.cli.ledger_steps import LedgerSteps
    from capcard_sched.model.card_labels import CardLabels
    from capcard_sched.simulation.run import SimulationOutcome
    from capcard_sched.simulation.scenario import SimulationOptions


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
    autoscaler: Annotated[bool, Parameter(negative=())] = False,
    provisioning_request_class: Annotated[ProvisioningClass, Parameter(show_default=False, metavar="CLASS")] = "",
    timeline: Annotated[bool, Parameter(negative=())] = False,
    report: Annotated[Path | None, Parameter(show_default=False, metavar="FILE")] = None,
    ledger: Annotated[str | None, Parameter(metavar="FILE|URL")] = None,
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
        autoscaler: Admit jobs that only the size of the cluster holds back, as `run --node-autoscaling` does. The
            simulation adds no nodes; operations of a Scenario can.
        provisioning_request_class: Class of the ProvisioningRequests of gangs, as in `run`. Implies --autoscaler.
        timeline: Also show cards in use over time, waiting times, and jobs blocked by quota; on standard error with
            -o json and -o yaml.
        report: Write the page of the end, with cards in use over time, to this HTML file (docs/web.md).
        ledger: Record jobs and card-hours in a new database, for `usage` and `history`: a file, or
            postgresql://USER@HOST:PORT/NAME.
    """
    given = ManifestInput(
        Source(
            file=file,
            scheduler_name=scheduler_name,
            default_queue=default_queue,
            plugins_dir=plugins_dir,
            autoscaler=autoscaler,
            provisioning_request_class=provisioning_request_class,
            until=until,
            schedule_period=schedule_period,
        )
    )
    try:
        options_of(given.source, simulated=True)  # before the files are read
        if not file:
            raise BadInputError("-f is required: a file, a folder or - for standard input")
        scenario = given.scenario()
        options = options_of(given.source, given.settings, simulated=True)
        scheduler = given.core(scheduler_conf)
    except BadInputError as error:
        return usage_error(str(error))
    from capcard_sched.gc import settle_memory
    from capcard_sched.reports.recording import Recorder

    settle_memory()
    card_labels = scheduler.snapshot().state.card_labels
    recorder = Recorder(card_labels) if timeline or report is not None else None
    try:
        with ExitStack() as stack:
            steps = None if ledger is None else stack.enter_context(_simulation_ledger(ledger, card_labels, options))
            recorders = (one for one in (recorder, steps) if one is not None)
            watched, outcome = given.simulate(scenario, scheduler, *recorders)
            if steps is not None:
                steps.record(outcome.deltas, EPOCH + outcome.end / SECOND, ())
                steps.ledger.flush()
    except BadInputError as error:
        return usage_error(str(error))
    for warning in (*outcome.warnings, *watched.warnings):
        put_error(f"warning: {warning}")
    found = None
    if output == "table" or report is not None:
        found = given.ended(scheduler, FailureWatch(scheduler), outcome, read_only=True, headlines=True)
        found.watched.warnings.update(dict.fromkeys((*outcome.warnings, *watched.warnings)))
    _show(outcome, output, found, evictions=not timeline)
    if recorder is not None:
        recorder.finish(EPOCH + outcome.end / SECOND)
    if recorder is not None and timeline:
        from capcard_sched.reports.timeline import timeline_lines, timeline_of

        for line in timeline_lines(timeline_of(recorder)):
            (put if output == "table" else put_error)(line)
    if report is not None and recorder is not None and found is not None:
        from capcard_sched.cli.report import write_report
        from capcard_sched.web.history import history_of

        try:
            history = history_of(recorder, EPOCH + outcome.begin / SECOND)
            write_report(report, found, ", ".join(file), history)
        except BadInputError as error:
            return usage_error(str(error))
    return watched.report()


@contextmanager
def _simulation_ledger(url: str, card_labels: CardLabels, options: SimulationOptions) -> Iterator[LedgerSteps]:
    """Record a simulation in a new database. Raises BadInputError."""
    from capcard_sched.cli.ledger_steps import LedgerSteps
    from capcard_sched.ledger.database import LedgerError
    from capcard_sched.ledger.usage_ledger import open_ledger

    try:
        with open_ledger(url) as found:
            if found.recorded_until:
                raise BadInputError(f"--ledger: {url}: it has records already; a simulation needs a new database")
            found.start(
                "simulation",
                "simulation",
                EPOCH + options.begin / SECOND,
                card_labels=card_labels,
                default_queue=options.default_queue,
            )
            yield LedgerSteps(found)
    except LedgerError as error:
        raise BadInputError(f"--ledger: {error}") from None


def _show(outcome: SimulationOutcome, output: str, found: LoadedCluster | None, *, evictions: bool) -> None:
    """`found`: the cluster at the end, for a table. `evictions`: list them; the timeline has them, too."""
    if output == "table":
        assert found is not None
        from capcard_sched.cli.overview import EvictionRow, print_overview

        evicted = [
            EvictionRow((one.at - outcome.begin) / SECOND, f"{one.namespace}/{one.pod}", one.node, one.message)
            for one in (outcome.evictions if evictions else ())
        ]
        print_overview(found, outcome.elapsed, evicted)
        return
    from capcard_sched.simulation.manifests import as_list, to_json, to_yaml

    document = as_list(outcome.store)
    if output == "json":
        put_json(to_json(document), end="")
    else:
        put(to_yaml(document), end="")
