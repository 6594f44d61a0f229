"""The plugins of Jobs (`spec.plugins`) as data: their arguments, and the plugins that each of them needs.

The controller, admission, `validate` and docs/job-plugins.md are derived from `JOB_PLUGINS`. Arguments are parsed as in
Go's flag package: `--a=b`, `--a b` and `-a=b`; a switch takes a value only behind `=`; the first word that is not an
argument ends the list, and the words behind it have no effect.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from capcard_sched.model.quoting import quoted, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The value of an argument.
ArgumentValue: TypeAlias = str | int | bool

_MOST_PORT: Final = 65535
_MOST_SECONDS: Final = 10**9
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}")


class Argument(NamedTuple):
    """One argument of a plugin; the type of its default is its own."""

    default: ArgumentValue
    effect: str
    #: Greatest value of a number; the least is 1.
    most: int = 0

    @property
    def form(self) -> str:
        """The accepted values."""
        if isinstance(self.default, bool):
            return "true or false"
        if not isinstance(self.default, int):
            return "text"
        return f"1 to {self.most}" if self.most == _MOST_PORT else "a whole number of seconds from 1"


class JobPluginRow(NamedTuple):
    """One plugin."""

    effect: str
    arguments: Mapping[str, Argument] = {}
    #: Plugins that it needs; admission adds them.
    needs: tuple[str, ...] = ()


def _port(default: int, effect: str) -> Argument:
    return Argument(default, effect, _MOST_PORT)


def _role(name: str) -> Argument:
    return Argument(name, f"task of the role {name}")


#: In the order in which they change a pod.
JOB_PLUGINS: Final[Mapping[str, JobPluginRow]] = {
    "env": JobPluginRow("Adds VC_TASK_INDEX, the index of a pod in its task, to all containers."),
    "svc": JobPluginRow(
        "Adds host names, a headless Service, the hosts of all tasks as files and variables, and a NetworkPolicy.",
        {
            "publish-not-ready-addresses": Argument(False, "the Service publishes pods that are not ready"),
            "disable-network-policy": Argument(False, "no NetworkPolicy is created"),
            "inject-hosts-env": Argument(
                True,
                "containers get `VC_<TASK>_HOSTS` and `VC_<TASK>_NUM`; the ConfigMap and its mount do not depend on it",
            ),
        },
    ),
    "ssh": JobPluginRow(
        "Adds a key pair and a client configuration with which each pod logs in to the others.",
        {
            "ssh-key-file-path": Argument("/root/.ssh", "folder of the keys in every container"),
            "ssh-private-key": Argument("", "private key; with the public key, replaces the generated pair"),
            "ssh-public-key": Argument("", "public key"),
            "ssh-port": _port(22, "port of each host in the client configuration"),
            "no-root": Argument(False, "no effect: ssh-key-file-path is the folder of the keys"),
        },
    ),
    "pytorch": JobPluginRow(
        "Adds MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK.",
        {
            "master": _role("master"),
            "worker": _role("worker"),
            "port": _port(23456, "port of the master"),
            "wait-master-enabled": Argument(False, "workers wait in an init container until the master listens"),
            "wait-master-timeout": Argument(300, "seconds after which the init container fails", _MOST_SECONDS),
            "wait-master-image": Argument("busybox:1.36.1", "image of the init container"),
        },
        needs=("svc",),
    ),
    "mpi": JobPluginRow(
        "Adds MPI_HOST, the hosts of the workers, to the master; it is empty without a worker task.",
        {"master": _role("master"), "worker": _role("worker"), "port": _port(22, "port of the SSH servers")},
        needs=("svc", "ssh"),
    ),
    "tensorflow": JobPluginRow(
        "Adds TF_CONFIG, the cluster specification.",
        {
            **{role: _role(role) for role in ("ps", "worker", "chief", "evaluator")},
            "port": _port(2222, "port of the servers"),
        },
        needs=("svc",),
    ),
    "ray": JobPluginRow(
        "Sets the commands that start a Ray cluster, and adds a Service for its head.",
        {
            "head": _role("head"),
            "headContainer": Argument("head", "container of the head that starts Ray"),
            "worker": _role("worker"),
            "workerContainer": Argument("worker", "container of a worker that starts Ray"),
            "port": _port(6379, "port of the global control store"),
            "dashboardPort": _port(8265, "port of the dashboard"),
            "clientPort": _port(10001, "port of clients"),
        },
        needs=("svc",),
    ),
    "hcclrank": JobPluginRow(
        "Adds the annotation hccl/rankIndex, the rank of a pod for Ascend devices.",
        {"master": _role("master"), "worker": _role("worker")},
    ),
}


class IgnoredArgument(NamedTuple):
    """A word of a plugin's arguments without effect."""

    #: Index in the list of arguments.
    place: int
    message: str
    accepted: str


class PluginArguments(NamedTuple):
    """The parsed arguments of one plugin."""

    #: Every argument of the plugin, with its default if none was given.
    values: Mapping[str, ArgumentValue]
    ignored: tuple[IgnoredArgument, ...]

    def text(self, name: str) -> str:
        """The value of a text argument. Raises KeyError for a name that the plugin does not define."""
        return str(self.values[name])

    def number(self, name: str) -> int:
        """The value of an argument with a number. Raises KeyError as `text`."""
        return int(self.values[name])

    def switch(self, name: str) -> bool:
        """The value of an argument that is true or false. Raises KeyError as `text`."""
        return bool(self.values[name])


def needed_plugins(names: Iterable[str]) -> list[str]:
    """Plugins that those of a Job need and that are not among them, sorted."""
    given = set(names)
    return sorted({needed for name in given & JOB_PLUGINS.keys() for needed in JOB_PLUGINS[name].needs} - given)


def accepted_arguments(plugin: str) -> str:
    """The arguments of a plugin, for messages."""
    return ", ".join(f"--{name}" for name in JOB_PLUGINS[plugin].arguments) or "no arguments"


def parse_plugin_arguments(plugin: str, words: Iterable[str]) -> PluginArguments:
    """Parse the arguments of one of JOB_PLUGINS. Does not raise: words without effect are `ignored`, in order."""
    known = JOB_PLUGINS[plugin].arguments
    values = {name: argument.default for name, argument in known.items()}
    ignored: list[IgnoredArgument] = []
    given = list(words)
    position = 0
    while position < len(given):
        index, word = position, given[position]
        position += 1
        if word == "--":
            break
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        if not word.startswith("-") or name not in known:
            message = f"unknown argument {_shown(word)}"
            ignored.append(IgnoredArgument(index, message, _accepted(plugin, word, given[:index])))
            break
        argument = known[name]
        if not equals and isinstance(argument.default, bool):
            values[name] = True
            continue
        if not equals:
            if position == len(given):
                ignored.append(IgnoredArgument(index, f"argument --{name} has no value", argument.form))
                break
            value = given[position]
            position += 1
        parsed = _parse(argument, value)
        if parsed is not None:
            values[name] = parsed
            continue
        message = f"argument --{name}={shortened(value)} is not accepted"
        if not _INTEGER.fullmatch(value) or isinstance(argument.default, bool):
            ignored.append(IgnoredArgument(index, message, argument.form))
            break
        values[name] = argument.default
        message = f"{message}: {argument.default} is used"
        ignored.append(IgnoredArgument(index, message, argument.form))
    cause = _shown(given[ignored[-1].place]) if ignored else quoted("--")
    ignored += [
        IgnoredArgument(
            index, f"argument {_shown(given[index])} has no effect after {cause}", accepted_arguments(plugin)
        )
        for index in range(position, len(given))
    ]
    return PluginArguments(values, tuple(ignored))


def _shown(word: str) -> str:
    """A word without its value, which may be a key."""
    return quoted(word.partition("=")[0] if word.startswith("-") else word)


def _accepted(plugin: str, word: str, before: list[str]) -> str:
    """The accepted form instead of an unknown word."""
    name = before[-1].lstrip("-") if before else ""
    argument = JOB_PLUGINS[plugin].arguments.get(name)
    if argument is not None and isinstance(argument.default, bool) and word in _TRUE | _FALSE:
        return f"--{name}={word}"
    return accepted_arguments(plugin)


def _parse(argument: Argument, value: str) -> ArgumentValue | None:
    """The value, None for one that is not accepted."""
    if isinstance(argument.default, bool):
        return True if value in _TRUE else False if value in _FALSE else None
    if isinstance(argument.default, int):
        is_number = _INTEGER.fullmatch(value) is not None
        return int(value) if is_number and 1 <= int(value) <= argument.most else None
    return value
