"""Flags of Volcano's programs without effect here, accepted so that arguments of existing deployments work."""

from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any, Final

from cyclopts import Group, Parameter

from capcard_sched.daemon import flag_values as values

GROUP: Final = Group("Accepted for compatibility, ignored", sort_key=6)

#: Prefix of the `--help` text of each flag.
NO_EFFECT: Final = "No effect: "

_SAMPLING: Final = "all nodes are considered, without sampling"
_STREAM: Final = "logs always go to standard error"
_FILE: Final = "logs go to standard error, not to files"


def _flag(why: str, converter: Any = None, **more: Any) -> Parameter:
    return Parameter(
        group=GROUP, help=f"{NO_EFFECT}{why}", converter=converter, negative=(), show_default=False, **more
    )


_text: Final = partial(_flag, metavar="TEXT")
_number: Final = partial(_flag, converter=values.whole(-(10**9), 10**9), metavar="N")
_duration: Final = partial(_flag, converter=values.duration, metavar="DURATION")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CommonCompatFlags:
    """Those of every program of Volcano. One field per flag; the form of values is checked; durations are seconds."""

    feature_gates: Annotated[str, _text("there are no feature gates")] = ""
    enable_pprof: Annotated[bool, _flag("there is no Go profile")] = False
    log_flush_frequency: Annotated[float, _duration("every line is written immediately")] = 5.0
    logtostderr: Annotated[bool, _flag(_STREAM)] = True
    alsologtostderr: Annotated[bool, _flag(_STREAM)] = False
    stderrthreshold: Annotated[str, _text(_STREAM)] = ""
    log_dir: Annotated[str, _text(_FILE)] = ""
    log_file: Annotated[str, _text(_FILE)] = ""
    log_file_max_size: Annotated[int, _number(_FILE)] = 1800
    one_output: Annotated[bool, _flag(_FILE)] = False
    skip_log_headers: Annotated[bool, _flag(_FILE)] = False
    skip_headers: Annotated[bool, _flag("see --log-format")] = False
    add_dir_header: Annotated[bool, _flag("see --log-format")] = False
    log_backtrace_at: Annotated[str, _text("internal errors are logged with a traceback")] = ""
    vmodule: Annotated[str, _text("-v applies to all modules")] = ""

    def given(self) -> dict[str, str]:
        """Flags with a value other than their default: name to the reason why they have no effect."""
        texts = {item.name: item.type.__metadata__[0].help for item in fields(self)}  # type: ignore[union-attr]
        default = type(self)()
        return {
            f"--{name.replace('_', '-')}": reason.removeprefix(NO_EFFECT)
            for name, reason in texts.items()
            if getattr(self, name) != getattr(default, name)
        }


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CompatFlags(CommonCompatFlags):
    """Those of the scheduler."""

    resync_period: Annotated[
        float,
        _duration("watches are relisted only when the API server requires it"),
    ] = 0.0
    node_worker_threads: Annotated[int, _number("the scheduler applies node updates itself, without workers")] = 20
    minimum_feasible_nodes: Annotated[int, _number(_SAMPLING)] = 100
    minimum_percentage_nodes_to_find: Annotated[int, _number(_SAMPLING)] = 5
    percentage_nodes_to_find: Annotated[int, _number(_SAMPLING)] = 0
    csi_storage: Annotated[bool, _flag("storage capacity is checked for every CSI driver that publishes it")] = False
    ignored_provisioners: Annotated[
        tuple[str, ...],
        _flag("a provisioner without published capacity is not checked", values.words, metavar="NAME"),
    ] = ()
