"""Flags of Volcano's programs that are accepted without effect, each with the reason; and values that are refused.

A value is refused if the program would decide otherwise without it.
"""

from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any, ClassVar, Final, NamedTuple

from capcard_sched.daemon import flag_values as values
from capcard_sched.daemon.flags import Flag, FlagGroup, flag
from capcard_sched.model.quoting import quoted

GROUP: Final = FlagGroup("Accepted for compatibility, ignored", 6)

#: Prefix of the `--help` text of each flag.
NO_EFFECT: Final = "No effect: "

_SHARDS: Final = "nodes are not sharded"
_PLAIN: Final = "the controllers serve plain HTTP"
_SAMPLING: Final = "all nodes are considered, without sampling"
_STREAM: Final = "logs always go to standard error"
_FILE: Final = "logs go to standard error, not to files"


def _flag(why: str, converter: Any = None, **more: Any) -> Flag:
    return flag(GROUP, converter, help=f"{NO_EFFECT}{why}", negative=(), show_default=False, **more)


class Gate(NamedTuple):
    """A feature gate of Volcano."""

    reason: str
    #: Whether the gate is on here, whatever the flag.
    default: bool = False


_NO_GATE: Final = "no gate of this program"
#: With it the admission server adds the queue allocation gate to pods.
QUEUE_GATE: Final = "SchedulingGatesQueueAdmission"
#: Volcano's feature gates with their meaning here; others have no effect.
GATES: Final = {
    QUEUE_GATE: Gate(
        "the scheduler always removes scheduling.volcano.sh/queue-allocation-gate; the admission server adds it with "
        "this gate alone",
        default=True,
    ),
    "UnschedulableJobCache": Gate(
        "a waiting job is always skipped until an input of its attempt changes", default=True
    ),
    "QueueScopedOvercommit": Gate("the overcommit factor of a queue always applies", default=True),
    "NamespaceQueue": Gate("NamespaceQueues are read wherever their kind is served", default=True),
}
#: The values of a gate, in Go's spellings.
_SWITCHES: Final = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


_text: Final = partial(_flag, metavar="TEXT")
_number: Final = partial(_flag, converter=values.whole(-(10**9), 10**9), metavar="N")
_duration: Final = partial(_flag, converter=values.duration, metavar="DURATION")


@dataclass(frozen=True, kw_only=True)
class CommonCompatFlags:
    """Those of every program of Volcano. One field per flag; the form of values is checked; durations are seconds."""

    #: Feature gates with an effect on this program.
    _honored: ClassVar[frozenset[str]] = frozenset()

    feature_gates: Annotated[str, _text("a gate is on or off for good; docs/flags.md lists those of Volcano")] = ""
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
        texts = {item.name: item.type.__metadata__[0].settings["help"] for item in fields(self)}  # type: ignore[union-attr]
        default = type(self)()
        found = {
            f"--{name.replace('_', '-')}": reason.removeprefix(NO_EFFECT)
            for name, reason in texts.items()
            if getattr(self, name) != getattr(default, name)
        }
        if found.pop("--feature-gates", None) is not None and (gates := self._ignored_gates()):
            found["--feature-gates"] = "; ".join(gates)
        return found

    def problems(self) -> list[str]:
        """Values whose loss changes decisions, a line each."""
        return []

    def is_on(self, gate: str) -> bool:
        return (gate, True) in self._gates()

    def _ignored_gates(self) -> list[str]:
        """Gates whose value differs from their state here, each with the reason."""
        found = []
        for name, is_on in self._gates():
            if is_on is None:
                found.append(f"{quoted(name)} is not Gate=true or Gate=false")
            elif name not in self._honored and (name not in GATES or is_on is not GATES[name].default):
                found.append(f"{name}={str(is_on).lower()}: {GATES.get(name, Gate(_NO_GATE)).reason}")
        return found

    def _gates(self) -> list[tuple[str, bool | None]]:
        """The feature gates and their values; None and the whole word for one that is malformed."""
        found: list[tuple[str, bool | None]] = []
        for word in filter(None, (part.strip() for part in self.feature_gates.split(","))):
            name, _, value = word.partition("=")
            is_on = _SWITCHES.get(value.strip().lower())
            found.append((word if is_on is None else name.strip(), is_on))
        return found


@dataclass(frozen=True, kw_only=True)
class CompatFlags(CommonCompatFlags):
    """Those of the scheduler."""

    scheduler_sharding_mode: Annotated[str, _text("nodes are not sharded: only none is accepted")] = "none"
    scheduler_sharding_name: Annotated[str, _text("nodes are not sharded")] = ""
    gate_removal_worker_num: Annotated[int, _number("scheduling gates are removed by the connections of bindings")] = 5
    unschedulable_job_cache_max_skip_duration: Annotated[
        float, _duration("a waiting job is skipped until an input of its attempt changes")
    ] = 300.0

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

    def problems(self) -> list[str]:
        """Values whose loss changes decisions, a line each."""
        found = super().problems()
        mode = self.scheduler_sharding_mode
        if mode in {"hard", "soft"}:
            found.append(
                f"--scheduler-sharding-mode: {mode} is not supported: without shards, pods are bound to nodes of "
                "other schedulers; accepted: none"
            )
        elif mode not in {"", "none"}:
            found.append(f"--scheduler-sharding-mode: {quoted(mode)} is not a mode; accepted: none")
        return found


@dataclass(frozen=True, kw_only=True)
class ControllerCompatFlags(CommonCompatFlags):
    """Those of the controllers."""

    sharding_configmap: Annotated[str, _text(_SHARDS)] = ""
    sharding_configmap_namespace: Annotated[str, _text(_SHARDS)] = ""
    scheduler_configs: Annotated[str, _text(_SHARDS)] = ""
    shard_sync_period: Annotated[float, _duration(_SHARDS)] = 60.0
    enable_node_event_trigger: Annotated[bool, _flag(_SHARDS)] = True
    hypernode_controller_mode: Annotated[str, _text("--network-topology-discovery decides")] = ""
    lock_object_namespace: Annotated[str, _text("see --leader-elect-resource-namespace")] = ""
    ca_cert_file: Annotated[str, _text(_PLAIN)] = ""
    tls_cert_file: Annotated[str, _text(_PLAIN)] = ""
    tls_private_key_file: Annotated[str, _text(_PLAIN)] = ""
    worker_threads_for_cronjob: Annotated[int, _number("see --worker-threads-for-gc")] = 5
    detection_period_of_dependson_task: Annotated[
        float, _duration("a task starts when the pods it waits for are ready")
    ] = 0.1


@dataclass(frozen=True, kw_only=True)
class AdmissionCompatFlags(CommonCompatFlags):
    """Those of the admission server. `--feature-gates` adds the queue allocation gate to pods."""

    _honored: ClassVar[frozenset[str]] = frozenset({QUEUE_GATE})

    ca_cert_file: Annotated[str, _text("the installation writes caBundle")] = ""
    webhook_url: Annotated[str, _text("the webhook configurations are part of the installation")] = ""
    enable_healthz: Annotated[bool, _flag("--healthz-address is always served")] = True
    enable_metrics: Annotated[bool, _flag("--healthz-address always serves /metrics")] = True
