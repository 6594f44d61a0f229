"""The lists of the command line: one set of flags, one selection and one printer for every kind."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from cyclopts import Parameter

from capcard_sched.cli.exit_codes import READER_HINT, BadInputError, usage_error
from capcard_sched.cli.output import put, put_error, put_json
from capcard_sched.cli.sources.load import leave_cache, load_cluster
from capcard_sched.cli.sources.source import Source
from capcard_sched.model.quoting import escaped
from capcard_sched.model.trials import API_VERSION

if TYPE_CHECKING:
    from cyclopts import App

    from capcard_sched.cli.sources.inputs import LoadedCluster
    from capcard_sched.reports.tables import TextTable

Json: TypeAlias = dict[str, Any]
Output: TypeAlias = Literal["table", "wide", "json", "yaml", "name"]
OutputFlag: TypeAlias = Annotated[Output, Parameter(name=["--output", "-o"])]
WatchFlag: TypeAlias = Annotated[bool, Parameter(name=["--watch", "-w"], negative=())]

_STEP: Final = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]|\['([^']*)'\]")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ListFlags:
    """Flags of every list."""

    output: Annotated[Output, Parameter(name=["--output", "-o"])] = "table"
    """Output format."""

    selector: Annotated[str, Parameter(name=["--selector", "-l"], show_default=False, metavar="SELECTOR")] = ""
    """Label selector: `team=a,tier!=test`."""

    queue: Annotated[str, Parameter(name=["--queue", "-q"], show_default=False, metavar="NAME")] = ""
    """Objects of this queue only; of cards and nodes those that its pods hold."""

    sort_by: Annotated[str, Parameter(show_default=False, metavar="COLUMN")] = ""
    """Column, or a JSON path such as `.free`; the largest amount first, text in its order."""

    watch: Annotated[bool, Parameter(name=["--watch", "-w"], negative=())] = False
    """After the list, print each row that changes. Only on a live cluster."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class NamespacedListFlags(ListFlags):
    """Flags of lists of namespaced objects."""

    namespace: Annotated[str, Parameter(name=["--namespace", "-n"], show_default=False, metavar="NAME")] = ""
    """Namespace. Default: that of the kubeconfig's context, else `default`."""

    all_namespaces: Annotated[bool, Parameter(name=["--all-namespaces", "-A"], negative=())] = False
    """List the objects of all namespaces."""


def cell(value: object) -> str:
    """A value as text: amounts without trailing zeros, several values joined, `-` for none."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    return f"{value:g}" if isinstance(value, float) else "-" if value is None or value == "" else str(value)


class Column(NamedTuple):
    """One column of a table."""

    header: str
    #: The value in an item: a number or a text, by which the list is sorted.
    value: Callable[[Json], Any]
    #: The cell; None: the value as text.
    text: Callable[[Json], str] | None = None
    #: In every table, with -o wide, with -A; all but the first only where an item of the list has a value.
    shown: Literal["always", "wide", "all namespaces", "present"] = "always"


def field(header: str, name: str, *, wide: bool = False, text: Callable[[Any], str] | None = None) -> Column:
    """The column of a field of the items; with `wide`, shown only with `-o wide`. `text` formats the values."""
    write = None if text is None else lambda item: text(item.get(name))
    return Column(header, lambda item: item.get(name), write, "wide" if wide else "always")


class Listing(NamedTuple):
    """A kind of list."""

    #: `Job`: a JSON document is a JobList.
    kind: str
    columns: tuple[Column, ...]
    #: The line of `-o name`: resource and name, as kubectl takes them.
    name: Callable[[Json], str]
    #: The lines of an item in a table.
    lines: Callable[[Json], Sequence[Json]] = lambda item: [item]
    #: The order of a list without --sort-by.
    arrange: Callable[[list[Json]], list[Json]] = lambda items: items
    #: Remarks on an item, below a table.
    remarks: Callable[[Json], Sequence[str]] = lambda _: ()
    #: Resources that the list reads and cannot do without.
    needs: tuple[str, ...] = ()


def show_list(
    listing: Listing,
    read: Callable[[LoadedCluster], list[Json]],
    flags: ListFlags,
    source: Source,
    names: Sequence[str] = (),
) -> int:
    """Load the cluster and print the items that `read` finds in it. Returns the exit status."""
    everywhere = not isinstance(flags, NamespacedListFlags) or flags.all_namespaces
    found = None
    try:
        if flags.watch and not source.is_live:
            raise BadInputError("--watch: follows a live cluster; -f and --recording read files")
        if flags.watch:
            leave_cache(source.cache, "--watch follows it")
            source = replace(source, cache="")
        given = flags.namespace if isinstance(flags, NamespacedListFlags) else ""
        found = load_cluster(source, read_only=True, namespace=given, jobs=listing.kind == "Job")
        unread = [name for name in found.unreadable if name in listing.needs]
        if unread:
            text = f"access denied: {', '.join(unread)}; {listing.kind.lower()} list reads them"
            raise BadInputError(f"{text}: {READER_HINT}")
        namespace = "" if everywhere else given or found.given.namespace

        def select(found: LoadedCluster) -> list[Json]:
            return _selected(listing, read(found), flags, namespace, names)

        items = select(found)
        printer = Printer(listing, flags.output, namespace=namespace, all_namespaces=everywhere)
        if flags.watch:
            from capcard_sched.cli.sources.live import LiveInput
            from capcard_sched.cli.watch import follow

            assert isinstance(found.given, LiveInput)
            follow(found.given, printer.print_items, select, headlines=found.headlines is not None)
        else:
            printer.print_list(items)
    except BadInputError as error:
        return usage_error(str(error))
    finally:
        if found is not None and found.headlines is not None:
            found.headlines.stop()
    return found.watched.report()


def add_list(app: App, listing: Listing, text: str, read: Callable[[LoadedCluster], list[Json]]) -> None:
    """Add the verb `list` of a kind without namespaces. `text`: the beginning of its help."""
    kind = listing.kind.lower()

    def command(
        *names: str,
        flags: ListFlags = ListFlags(),
        source: Source = Source(),  # noqa: B008 - frozen
    ) -> int:
        return show_list(listing, read, flags, source, names)

    command.__doc__ = f"""{text}With -f, runs the manifests through the simulator first. Without -f, reads a live \
cluster; writes nothing.

Exit status: 0; 2 on bad input or an unknown {kind}; 1 on an internal error.

Args:
    names: {listing.kind}s to list. Default: all.
"""
    app.command(command, name="list", usage=f"capcard-sched {kind} list [OPTIONS] [NAMES...]")


def _selected(
    listing: Listing, items: list[Json], flags: ListFlags, namespace: str, names: Sequence[str]
) -> list[Json]:
    """The items of the flags, sorted. Raises BadInputError for an unknown name, column or path."""
    if names:
        known = dict.fromkeys(item["name"] for item in items)
        unknown = [name for name in names if name not in known]
        if unknown:
            kind = listing.kind.lower()
            raise BadInputError(f"no such {kind}: {', '.join(unknown)}; existing {kind}s: {', '.join(known)}")
        items = [item for item in items if item["name"] in names]
    if namespace:
        items = [item for item in items if item["namespace"] == namespace]
    if flags.queue:
        items = [item for item in items if flags.queue in _queues_of(item)]
    if flags.selector:
        matches = _label_matcher(flags.selector)
        items = [item for item in items if matches(item.get("labels") or {})]
    return sort_items(listing, items, flags.sort_by) if flags.sort_by else listing.arrange(items)


def _queues_of(item: Json) -> Sequence[str]:
    """The queues of an item: those of the pods on it, that of a job or pod, or the queue itself."""
    return list(item["queues"]) if "queues" in item else [item["queue"] if "queue" in item else item["name"]]


def _label_matcher(text: str) -> Callable[[Json], bool]:
    from capcard_sched.model.queue import parse_label_selector
    from capcard_sched.model.selectors import matches_labels

    try:
        selector = parse_label_selector(text)
    except ValueError as error:
        form = "accepted: team=a, tier!=test, team in (a, b), gpu, !gpu, joined by commas"
        raise BadInputError(f"--selector: {error}; {form}") from None
    return lambda labels: matches_labels(selector, labels)


def sort_items(listing: Listing, items: list[Json], by: str) -> list[Json]:
    """Items by a column or a JSON path: numbers in descending order, texts ascending, items without a value last.

    Raises BadInputError for an unknown column, and for a path that no item has.
    """
    if by[:1] in {".", "{", "$"}:
        keys = [_at_path(item, by) for item in items]
        if items and all(key is None for key in keys):
            fields = ", ".join(f".{name}" for name in items[0])
            raise BadInputError(f"--sort-by: {by!r}: no item has it; accepted: a column, or a path of {fields}")
    else:
        columns = {one.header.partition(" (")[0].lower().replace(" ", "-"): one for one in listing.columns}
        column = columns.get(by.lower())
        if column is None:
            accepted = ", ".join(columns)
            raise BadInputError(f"--sort-by: {by!r}: accepted: {accepted}, or a JSON path such as .name")
        keys = [_largest([column.value(line) for line in listing.lines(item)]) for item in items]
    present = [key for key in keys if key is not None]
    numeric = all(isinstance(key, int | float) for key in present)

    def order(position: int) -> tuple[bool, float, str]:
        key = keys[position]
        if key is None:
            return True, 0.0, ""
        return (False, -float(key), "") if numeric else (False, 0.0, cell(key))

    return [items[position] for position in sorted(range(len(items)), key=order)]


def _largest(values: list[Any]) -> Any:
    numbers = [value for value in values if isinstance(value, int | float)]
    return max(numbers) if numbers else next((value for value in values if value not in (None, "")), None)


def _at_path(item: Json, path: str) -> Any:
    """The value at a path such as `.cards[0].free`, also in kubectl's form `{.cards[0].free}`; None: there is none."""
    text = path.removeprefix("{").removesuffix("}").removeprefix("$")
    steps = list(_STEP.finditer(text))
    if "".join(step.group() for step in steps) != text or not steps:
        raise BadInputError(f"--sort-by: {path!r}: expected a JSON path such as .free or .cards[0].card")
    value: Any = item
    for step in steps:
        key: Any = step[1] or step[3] if step[2] is None else int(step[2])
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


class Printer:
    """Prints items in one format; rows that follow keep the widths of the columns."""

    def __init__(self, listing: Listing, output: Output, *, namespace: str = "", all_namespaces: bool = False) -> None:
        """`namespace`: that of all items; "" for several, and for cluster-scoped kinds."""
        shown = {
            "always",
            "present",
            *(["wide"] if output == "wide" else []),
            *(["all namespaces"] if all_namespaces else []),
        }
        self._listing, self._output, self._namespace = listing, output, namespace
        self._columns = [column for column in listing.columns if column.shown in shown]
        self._table: TextTable | None = None

    def print_list(self, items: Sequence[Json]) -> None:
        """Print a list: one document, or a table with headers."""
        lines = [line for item in items for line in self._listing.lines(item)]
        self._columns = [
            column
            for column in self._columns
            if column.shown == "always" or any(column.value(line) is not None for line in lines)
        ]
        if self._output in {"json", "yaml"}:
            head = {"apiVersion": API_VERSION, "kind": f"{self._listing.kind}List"}
            print_document({**head, "items": list(items)}, self._output)
        elif self._output == "name" or items:
            self.print_items(items)
        else:
            where = f" in {self._namespace} namespace." if self._namespace else ""
            put_error(f"No resources found{where}")

    def print_items(self, items: Sequence[Json]) -> None:
        """Print a row, a name or a document per item; headers before the first row."""
        if self._output == "name":
            for name in dict.fromkeys(map(self._listing.name, items)):
                put(name)
        elif self._output in {"json", "yaml"}:
            for item in items:
                if self._output == "yaml":
                    put("---")
                print_document(item, self._output)
        else:
            lines = [line for item in items for line in self._listing.lines(item)]
            if self._table is None:
                from capcard_sched.reports.tables import TextTable

                self._table = TextTable([column.header for column in self._columns], self._numeric(lines))
            for row in self._table.lines(map(self._texts, lines)):
                put(row)
            for item in items:
                for remark in self._listing.remarks(item):
                    put(escaped(remark))
        sys.stdout.flush()

    def _texts(self, line: Json) -> list[str]:
        columns = self._columns
        return [cell(column.value(line)) if column.text is None else column.text(line) for column in columns]

    def _numeric(self, lines: Sequence[Json]) -> list[int]:
        """The indexes of the columns that have a number in some line."""
        values = [[column.value(line) for line in lines] for column in self._columns]
        return [index for index, column in enumerate(values) if any(isinstance(one, int | float) for one in column)]


def print_document(document: Json | msgspec.Struct, output: Output) -> None:
    """Print one document as JSON or YAML."""
    if output == "json":
        put_json(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    else:
        import yaml

        put(yaml.safe_dump(document, sort_keys=False), end="")
