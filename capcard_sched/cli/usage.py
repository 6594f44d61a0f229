"""`capcard-sched usage`, `history` and `ledger`: card-hours of a ledger or a recording."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from cyclopts import App, Parameter

from capcard_sched.cli.exit_codes import BadInputError, usage_error
from capcard_sched.cli.output import put, put_error, put_json
from capcard_sched.cli.report import write_usage
from capcard_sched.cli.sources.cores import valid_conf
from capcard_sched.model.timestamps import SPAN_FORM, DurationError, format_timestamp, parse_span, span
from capcard_sched.reports.evictions import preemptor_text
from capcard_sched.reports.tables import TextTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.cli.ledger_server import LedgerServer
    from capcard_sched.daemon.card_activity import CardMeter
    from capcard_sched.daemon.diagnosis.recording import RecordingReader
    from capcard_sched.ledger.job_history import JobLife
    from capcard_sched.ledger.usage_ledger import UsageLedger
    from capcard_sched.ledger.usage_report import UsageReport, UsageRow
    from capcard_sched.model.card_labels import CardLabels
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.intents import Intent

Database = Annotated[str | None, Parameter(name="--ledger", metavar="FILE|URL")]
Recording = Annotated[Path | None, Parameter(metavar="FILE")]
Server = Annotated[str, Parameter(metavar="URL", show_default=False)]
TokenFile = Annotated[Path | None, Parameter(metavar="FILE")]
Prometheus = Annotated[str, Parameter(metavar="URL", show_default=False)]
Since = Annotated[str, Parameter(allow_leading_hyphen=True, metavar="DURATION")]

ledger_app = App(name="ledger", help="Record card-hours in a database.")

#: Millionths of a card-second per hundredth of a card-hour.
_HUNDREDTH: Final = 36_000_000
#: Dimension to the header of its column.
_HEADERS: Final = {
    "queue": "QUEUE", "card": "CARD", "namespace": "NAMESPACE", "user": "USER", "service": "SERVICE", "day": "DAY",
}  # fmt: skip


def usage(
    *,
    ledger: Database = None,
    recording: Recording = None,
    server: Server = "",
    token_file: TokenFile = None,
    since: Since = "30d",
    by: str = "queue,card",
    prometheus: Prometheus = "",
    report: Annotated[Path | None, Parameter(show_default=False, metavar="FILE")] = None,
    output: Annotated[Literal["table", "csv", "json"], Parameter(name=["--output", "-o"])] = "table",
) -> int:
    """Show card-hours: used, idle and lent parts of quotas, evicted work, waits of jobs, utilization of cards.

    Args:
        ledger: Database: a file, or postgresql://USER@HOST:PORT/NAME.
        recording: Recording of `run --record` instead of a database.
        server: Address of a running `web --ledger` instead of a database, such as http://127.0.0.1:8090.
        token_file: File with a bearer token for --server, of a user of the cluster.
        since: Period up to the last record, such as 12h or 30d.
        by: Groups, separated by commas: queue, card, namespace, user, service, day.
        prometheus: Address of a Prometheus with DCGM's utilization of GPUs, for the held but unused card-hours, such as
            http://prometheus.monitoring:9090 (docs/ledger.md).
        report: Write the figures and cards in use over time to this HTML file, too (docs/web.md).
        output: Output format. csv has the groups; amounts are card-hours, waits seconds.
    """
    from capcard_sched.ledger.database import LedgerError
    from capcard_sched.ledger.usage_report import UsageQuery, parse_dimensions

    try:
        try:
            groups = parse_dimensions(by)
        except ValueError as error:
            raise BadInputError(f"--by: {error}") from None
        seconds = _seconds("--since", since)
        remote = _server(server, token_file, ledger, recording)
        if remote is not None and (prometheus or report):
            raise BadInputError(f"{'--prometheus' if prometheus else '--report'}: not with --server: give --ledger")
        meter = _meter(prometheus) if prometheus else None
        if remote is not None:
            found = remote.usage(since, ",".join(groups))
        else:
            with _opened(ledger, recording) as source:
                until = source.recorded_until
                over_time = source.usage_over_time(UsageQuery(until - seconds, until, groups), meter)
                found = over_time.report
                if report is not None:
                    write_usage(report, over_time, since, str(recording or source.database.name))
    except (BadInputError, LedgerError) as error:
        return usage_error(str(error))
    measured = bool(prometheus) or any(row.measured is not None for row in found.rows)
    if output == "json":
        put_json(msgspec.json.format(msgspec.json.encode(_document(found)), indent=2).decode())
    elif output == "csv":
        put(_csv(found, measured=measured), end="")
    else:
        _print_tables(found, measured=measured)
    for note in found.notes:
        put_error(f"note: {note}")
    return 0


def history(
    kind: Literal["job"] = "job",
    name: str = "",
    /,
    *,
    ledger: Database = None,
    recording: Recording = None,
    server: Server = "",
    token_file: TokenFile = None,
    since: Since = "30d",
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"])] = "",
    output: Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"])] = "table",
) -> int:
    """Show the lives of jobs: submission, waits, stages, end, and card-hours.

    A job whose pods were all evicted or deleted, and are created again, begins another life.

    Args:
        kind: `job`.
        name: Job, PodGroup or pod; its stages are shown, too. Default: all jobs.
        ledger: Database: a file, or postgresql://USER@HOST:PORT/NAME.
        recording: Recording of `run --record` instead of a database.
        server: Address of a running `web --ledger` instead of a database, such as http://127.0.0.1:8090.
        token_file: File with a bearer token for --server, of a user of the cluster.
        since: Period up to the last record, such as 12h or 30d.
        namespace: Jobs of this namespace only.
        output: Output format.
    """
    from capcard_sched.ledger.database import LedgerError

    try:
        seconds = _seconds("--since", since)
        remote = _server(server, token_file, ledger, recording)
        if remote is not None:
            lives, until = remote.history(since, name, namespace)
        else:
            with _opened(ledger, recording) as source:
                until = source.recorded_until
                lives = source.history_before(until, seconds, name, namespace)
    except (BadInputError, LedgerError) as error:
        return usage_error(str(error))
    if name and not lives:
        return usage_error(f"no {kind} {name} in the period")
    if output == "json":
        put_json(msgspec.json.format(msgspec.json.encode(lives), indent=2).decode())
        return 0
    _print_lives(lives, until, stages=bool(name))
    return 0


@ledger_app.command(name="import")
def import_recording(file: Path, /, *, ledger: Annotated[str, Parameter(metavar="FILE|URL")], keep: str = "") -> int:
    """Add a recording of `run --record` to a database. A recording that was added in part continues.

    Args:
        file: Recording.
        ledger: Database, created where necessary: a file, or postgresql://USER@HOST:PORT/NAME.
        keep: Afterwards replace charges and jobs that ended longer ago by daily sums, such as 400d. Default: keep all.
    """
    from capcard_sched.ledger.database import LedgerError
    from capcard_sched.ledger.usage_ledger import open_ledger

    try:
        kept = _seconds("--keep", keep) if keep else None
        with open_ledger(ledger) as found:
            record(file, found)
            if kept is not None:
                found.keep(kept)
    except (BadInputError, LedgerError) as error:
        return usage_error(str(error))
    return 0


def _server(url: str, token_file: Path | None, database: str | None, recording: Path | None) -> LedgerServer | None:
    """The server of the flags, None without one. Raises BadInputError."""
    if not url:
        if token_file is not None:
            raise BadInputError("--token-file: needs --server")
        return None
    if database is not None or recording is not None:
        raise BadInputError("give one of --ledger, --recording and --server")
    from capcard_sched.cli.ledger_server import LedgerServer

    return LedgerServer(url, token_file)


def _meter(url: str) -> CardMeter:
    """Raises BadInputError."""
    from capcard_sched.daemon.card_activity import CardMeter

    try:
        return CardMeter.of_url(url)
    except ValueError as error:
        raise BadInputError(f"--prometheus: {error}") from None


@contextmanager
def _opened(database: str | None, recording: Path | None) -> Iterator[UsageLedger]:
    """The database of the flags. Raises BadInputError, LedgerError."""
    from capcard_sched.ledger.database import IN_MEMORY
    from capcard_sched.ledger.usage_ledger import open_ledger

    if (database is None) == (recording is None):
        raise BadInputError("give one of --ledger, --recording and --server")
    with open_ledger(database or IN_MEMORY, create=database is None) as found:
        if recording is not None:
            record(recording, found)
        yield found


def record(file: Path, ledger: UsageLedger) -> None:
    """Record a recording. Raises BadInputError, LedgerError."""
    from capcard_sched.daemon.diagnosis.recording import RecordingError, RecordingReader

    try:
        reader = RecordingReader(file)
        identity = hashlib.sha256(msgspec.json.encode(reader.header)).hexdigest()[:16]
        started = False
        for now, deltas, intents, conf in _steps(reader):
            if not started:
                labels = _card_labels(conf, str(file))
                queue = reader.header.default_queue
                ledger.start(identity, "recording", now, card_labels=labels, default_queue=queue)
                started = True
            ledger.feed(now, deltas, intents)
        if not started:
            raise BadInputError(f"{file}: the recording has no step")
        ledger.flush()
    except RecordingError as error:
        raise BadInputError(str(error)) from None


def _steps(reader: RecordingReader) -> Iterator[tuple[float, list[Delta], list[Intent], dict[str, Any]]]:
    """Moment, deltas, intents and scheduler-conf of each step; steps of one millisecond are one."""
    from capcard_sched.daemon.diagnosis.recording import Applied, ConfUsed, Stepped

    conf: dict[str, Any] = {}
    now, deltas, intents = 0.0, list[Any](), list[Any]()
    later: list[Any] = []
    for record in reader:
        if isinstance(record, ConfUsed):
            conf = record.document
        elif isinstance(record, Applied):
            later += record.deltas
        elif isinstance(record, Stepped):
            if now and round(record.now * 1000) > round(now * 1000):
                yield now, deltas, intents, conf
                deltas, intents = [], []
            now = record.now
            deltas += [*later, *record.deltas]
            intents += record.intents
            later = []
    if now:
        yield now, deltas + later, intents, conf


def _card_labels(conf: dict[str, Any], where: str) -> CardLabels:
    """The labels of cards of a recorded scheduler-conf. Raises BadInputError."""
    from capcard_sched.framework.conf.registry import Registry

    return valid_conf(msgspec.json.encode(conf), where, Registry.load()).quota_plugins.card_labels


def _seconds(flag: str, text: str) -> float:
    try:
        found = parse_span(text)
    except DurationError as error:
        raise BadInputError(f"{flag}: {error}: expected {SPAN_FORM}") from None
    if not found:
        raise BadInputError(f"{flag}: {text!r}: must be > 0, expected {SPAN_FORM}")
    return found / 10**6


# --- output -----------------------------------------------------------------------------------------------------------


def _hours(amount: int | None) -> str:
    """Card-hours with two decimals, rounded half up; "" for None."""
    if amount is None:
        return ""
    hundredths = (amount + _HUNDREDTH // 2) // _HUNDREDTH
    return f"{hundredths // 100}.{hundredths % 100:02}"


def _wait(milliseconds: int | None) -> str:
    return "" if milliseconds is None else span(milliseconds // 1000)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else ""


def _print_tables(report: UsageReport, *, measured: bool) -> None:
    put(f"Card-hours from {report.since} to {report.until}")
    has_quota = any(row.quota is not None for row in report.rows)
    quotas = ["QUOTA", "IDLE", "LENT"] if has_quota else []
    names = [_HEADERS[name] for name in report.by]
    headers = [*names, "USED", *(["UNUSED"] if measured else []), *quotas, "EVICTED", "JOBS", "WAIT P50", "WAIT P90"]
    rows = [
        (
            *row.group,
            _hours(row.used),
            *([_hours(row.unused) or "-"] if measured else ()),
            *([_hours(row.quota), _hours(row.idle), _hours(row.lent)] if has_quota else ()),
            _hours(row.evicted),
            str(row.jobs),
            _wait(row.wait_p50),
            _wait(row.wait_p90),
        )
        for row in report.rows
    ]
    for line in TextTable(headers, range(len(names), len(headers))).lines(rows):
        put(line)
    cards = [
        (
            row.card,
            _hours(row.capacity),
            _hours(row.unavailable),
            _hours(row.used),
            _percent(row.used, row.capacity),
        )
        for row in report.cards
    ]
    if cards:
        put("")
        for line in TextTable(("CARD", "CAPACITY", "UNAVAILABLE", "USED", "UTILIZATION"), range(1, 5)).lines(cards):
            put(line)


def _csv(report: UsageReport, *, measured: bool) -> str:
    from capcard_sched.web.usage import usage_group
    from capcard_sched.web.usage_csv import usage_csv

    more = {name: [_hours(getattr(row, name)) for row in report.rows] for name in ("measured", "unused")}
    return usage_csv(report.by, map(usage_group, report.rows), more if measured else {})


def _document(report: UsageReport) -> dict[str, Any]:
    """Card-time in millionths of a card-second, waits in milliseconds."""
    found: dict[str, Any] = msgspec.to_builtins(report)
    found["unit"] = "millionths of a card-second"
    found["rows"] = [{**dict(zip(report.by, row.group, strict=True)), **_without_group(row)} for row in report.rows]
    return found


def _without_group(row: UsageRow) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(row)
    del found["group"]
    return found


def _print_lives(lives: Sequence[JobLife], until: float, *, stages: bool) -> None:
    headers = (
        "NAMESPACE", "JOB", "QUEUE", "CARD", "SUBMITTED", "WAITED", "RAN", "CARD-HOURS", "OUTCOME",
    )  # fmt: skip
    right = (5, 6, 7)
    rows = []
    for life in lives:
        job, end = life.job, round(until * 1000)
        waited = (end if job.ended is None else job.ended) if job.whole is None else job.whole
        ran = "" if job.whole is None else _wait((end if job.ended is None else job.ended) - job.whole)
        name = f"{job.kind}/{job.name}"
        submitted = format_timestamp(job.submitted / 1000)
        state = job.outcome or ("Running" if job.whole is not None else "Pending")
        wait = _wait(waited - job.submitted)
        cells = (job.namespace, name, job.queue, job.card, submitted, wait, ran)
        rows.append((*cells, _hours(life.card_time), state))
    for line in TextTable(headers, right).lines(rows):
        put(line)
    if not stages:
        return
    for life in lives:
        job = life.job
        put("")
        put(f"{job.namespace}/{job.kind}/{job.name} of {format_timestamp(job.submitted / 1000)}")
        parts = [
            (one.stage, format_timestamp(one.began / 1000), _wait((one.ended or round(until * 1000)) - one.began))
            for one in life.stages
        ]
        for line in TextTable(("STAGE", "SINCE", "FOR"), (2,)).lines(parts):
            put(line)
        for text in life.preemptors:
            put(f"evicted: {preemptor_text(text)}")
