"""Flags of the reference that mean nothing here: accepted, so that the arguments of an existing deployment work."""

from dataclasses import dataclass, fields
from typing import Annotated, Any, Final

from cyclopts import Group, Parameter

from capcard_sched.daemon import flag_values as values

GROUP: Final = Group("Accepted for the sake of existing deployments; without effect", sort_key=6)

#: How `--help` begins what it says of each.
NO_EFFECT: Final = "No effect: "

_SAMPLING: Final = "all nodes are looked at, none are sampled"
_STREAM: Final = "logs always go to standard error"
_FILE: Final = "logs go to standard error, and no file is written"


def _flag(why: str, converter: Any = None, **more: Any) -> Parameter:
    return Parameter(
        group=GROUP, help=f"{NO_EFFECT}{why}", converter=converter, negative=(), show_default=False, **more
    )


def _switch(why: str) -> Parameter:
    return _flag(why)


def _text(why: str) -> Parameter:
    return _flag(why, metavar="TEXT")


def _number(why: str) -> Parameter:
    return _flag(why, values.whole(-(10**9), 10**9), metavar="N")


def _duration(why: str) -> Parameter:
    return _flag(why, values.duration, metavar="DURATION")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CompatFlags:
    """One field each. Values are checked for their form, so that a slip shows; durations are seconds."""

    resync_period: Annotated[
        float,
        _duration("what was watched is listed again only when the API server asks for it"),
    ] = 0.0
    node_worker_threads: Annotated[
        int, _number("node updates are taken in by the scheduler itself, without workers")
    ] = 20
    minimum_feasible_nodes: Annotated[int, _number(_SAMPLING)] = 100
    minimum_percentage_nodes_to_find: Annotated[int, _number(_SAMPLING)] = 5
    percentage_nodes_to_find: Annotated[int, _number(_SAMPLING)] = 0
    csi_storage: Annotated[bool, _switch("capacity counts for every CSI driver that says it publishes it")] = False
    ignored_provisioners: Annotated[
        tuple[str, ...],
        _flag("a provisioner whose driver publishes no capacity is not held to any", values.words, metavar="NAME"),
    ] = ()
    feature_gates: Annotated[str, _text("there are no gates, what is built is on and what is not is off")] = ""
    enable_pprof: Annotated[bool, _switch("there is no Go profile to serve")] = False
    log_flush_frequency: Annotated[float, _duration("every line is written at once")] = 5.0
    logtostderr: Annotated[bool, _switch(_STREAM)] = True
    alsologtostderr: Annotated[bool, _switch(_STREAM)] = False
    stderrthreshold: Annotated[str, _text(_STREAM)] = ""
    log_dir: Annotated[str, _text(_FILE)] = ""
    log_file: Annotated[str, _text(_FILE)] = ""
    log_file_max_size: Annotated[int, _number(_FILE)] = 1800
    one_output: Annotated[bool, _switch(_FILE)] = False
    skip_log_headers: Annotated[bool, _switch(_FILE)] = False
    skip_headers: Annotated[bool, _switch("see --log-format")] = False
    add_dir_header: Annotated[bool, _switch("see --log-format")] = False
    log_backtrace_at: Annotated[str, _text("an internal error is logged with its trace")] = ""
    vmodule: Annotated[str, _text("-v is for all modules")] = ""

    def given(self) -> dict[str, str]:
        """The flags whose value is not the default, with why they do nothing."""
        why = {item.name: item.type.__metadata__[0].help for item in fields(self)}  # type: ignore[union-attr]
        default = CompatFlags()
        return {
            f"--{name.replace('_', '-')}": reason.removeprefix(NO_EFFECT)
            for name, reason in why.items()
            if getattr(self, name) != getattr(default, name)
        }
