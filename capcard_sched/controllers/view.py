"""The interface of a controller: it reads a `View`, returns a `Result` of writes, and never writes itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypeAlias

from capcard_sched.controllers.objects import (
    BATCH_API,
    COMMAND,
    JOB,
    QUEUE,
    SCHEDULING_API,
    Key,
    controller_key,
    key_of,
    meta,
)
from capcard_sched.model.intents import EmitEvent, ObjectRef
from capcard_sched.model.numbers import whole_number
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from capcard_sched.controllers.objects import JsonObject

#: Source of the events of these controllers, as users of Volcano know it.
COMPONENT = "vc-controller-manager"
#: Seconds by which the clocks of replicas may differ. A time that lies further ahead was recorded by a wrong clock.
CLOCK_SKEW: Final = 60.0
#: Commands for an object of one pass: thousands for one object do not delay the others.
COMMANDS_AT_ONCE: Final = 64
#: Kinds that commands are for, with their `target.apiVersion`.
_TARGETS: Final = {JOB: BATCH_API, QUEUE: SCHEDULING_API}
#: Seconds for which a command waits for its target to appear.
_TARGET_SECONDS = 10.0


class View(Protocol):
    """The objects of a cluster, read-only. It includes every write that was acknowledged before."""

    def get(self, kind: str, namespace: str, name: str) -> JsonObject | None:
        """The object, or None."""

    def owned(self, owner: JsonObject, kind: str) -> Sequence[JsonObject]:
        """Objects of a kind whose controller is `owner`."""

    def targeting(self, key: Key) -> Sequence[JsonObject]:
        """Commands whose target is this object, oldest first; at most `COMMANDS_AT_ONCE`."""

    def group_phases(self, queue: str) -> Mapping[str, int]:
        """Number of PodGroups of a queue by phase."""


class Create(NamedTuple):
    """Create an object. One of that name with the same owner is as good; with `adopt` also one without owners."""

    object: JsonObject
    adopt: bool = False


class Patch(NamedTuple):
    """Merge-patch an object. `uid` and `version` (resourceVersion) are preconditions unless ""."""

    key: Key
    patch: JsonObject
    uid: str = ""
    version: str = ""
    #: `status`, or "" for the main resource.
    subresource: Literal["", "status"] = ""
    #: It only shows progress: the write may be delayed and merged with later ones.
    lazy: bool = False


class Delete(NamedTuple):
    """Delete an object; one that is gone already is as good."""

    key: Key
    uid: str
    foreground: bool = False
    #: A precondition unless "": the object is as it was read.
    version: str = ""


class Increment(NamedTuple):
    """Increment a counter."""

    metric: str
    labels: tuple[tuple[str, str], ...]


class Observe(NamedTuple):
    """Observe the milliseconds since a moment in a histogram, `times` times."""

    metric: str
    #: Unix seconds.
    since: float
    times: int = 1


Write: TypeAlias = Create | Patch | Delete | EmitEvent | Increment | Observe


class Result(NamedTuple):
    """The writes to make, in order; the first that fails stops the rest. `at`: reconcile again then (unix seconds)."""

    writes: Sequence[Write] = ()
    at: float | None = None


class Failure(NamedTuple):
    """A write that failed."""

    write: Write
    #: The response of the API server.
    error: str
    #: Whether the retry limit is reached.
    last: bool


class Controller(Protocol):
    """Reconciles the objects of one kind."""

    #: Kinds whose changes `keys` wants to see.
    watches: frozenset[str]
    #: Those of which it must see all objects when it starts. The others only lead to keys that these lead to as well.
    replays: frozenset[str]

    def keys(self, kind: str, old: JsonObject | None, new: JsonObject | None) -> Iterable[Key]:
        """The objects to reconcile after a change; `old` is None for an added object, `new` for a deleted one."""

    def reconcile(self, view: View, key: Key, now: float) -> Result:
        """The writes that bring the object in line. `now` in unix seconds."""

    def failed(self, view: View, key: Key, now: float, failure: Failure) -> Result:
        """The writes that follow a write that failed, events mostly; the object is reconciled again with backoff."""


def event_on(
    kind: Literal["Job", "CronJob", "Queue", "PodGroup", "Pod", "Node", "HyperNode"],
    obj: JsonObject,
    reason: str,
    message: str,
    *,
    warning: bool = False,
) -> EmitEvent:
    about = ObjectRef(kind, *key_of(obj), meta(obj)["uid"])
    return EmitEvent(about, "Warning" if warning else "Normal", reason, message, COMPONENT)


def is_as_good(present: JsonObject, write: Create) -> bool:
    """Whether an object of the name of a creation will do."""
    owner = controller_key(present)
    if owner is not None:
        return owner == controller_key(write.object)
    return write.adopt and not meta(present).get("ownerReferences")


def delete(kind: str, obj: JsonObject) -> Delete:
    """The deletion of this object, not of another one of its name."""
    return Delete(Key(kind, *key_of(obj)), meta(obj)["uid"])


def target_of(command: JsonObject) -> Key | None:
    """The object that a command is for; None for a kind without commands. A Job is in the namespace of its command."""
    target = command.get("target") or {}
    kind = target.get("kind")
    if kind not in _TARGETS or target.get("apiVersion", _TARGETS[kind]) != _TARGETS[kind]:
        return None
    return Key(kind, key_of(command)[0] if kind == JOB else "", target.get("name", ""))


def command_age(command: JsonObject) -> tuple[str, int, str]:
    """The order of Commands. Those of one second have the order of their resourceVersion; names are random."""
    metadata = meta(command)
    version = whole_number(str(metadata.get("resourceVersion") or ""), 2**64) or 0
    return metadata.get("creationTimestamp") or "", version, metadata["name"]


def rest_at(commands: Sequence[JsonObject], now: float) -> float | None:
    """When the next pass takes the Commands that `targeting` left out: at once; None when it left none."""
    return now if len(commands) >= COMMANDS_AT_ONCE else None


def is_for(command: JsonObject, key: Key, uid: str) -> bool:
    """Whether a command is for this object. Only in a file, `target.uid` can be absent: the schema requires it."""
    return target_of(command) == key and (command.get("target") or {}).get("uid", uid) == uid


def ignored_command(
    kind: Literal["Job", "Queue"], obj: JsonObject, command: JsonObject
) -> tuple[Delete, tuple[str, str, bool]]:
    """The deletion of a command that is for another object of the name, and reason, text and type of the event."""
    namespace, name = key_of(command)
    uid, action = (command.get("target") or {}).get("uid", ""), command.get("action") or ""
    text = f"Command {namespace}/{name} ({action}) is ignored: target.uid <{uid}> is not the uid of this {kind}"
    return delete(COMMAND, command), ("CommandIgnored", f"{text}, <{meta(obj)['uid']}>", True)


def unmatched_commands(view: View, key: Key, now: float) -> Result:
    """The commands for an object that the view lacks wait, as the watch of the object may be behind; then they end."""
    commands = view.targeting(key)
    rest = rest_at(commands, now)
    ends = [parse_time(meta(command).get("creationTimestamp")) + _TARGET_SECONDS for command in commands]
    outdated = [delete(COMMAND, command) for command, end in zip(commands, ends, strict=True) if end <= now]
    # All of them wait while the oldest do.
    return Result(outdated, min((end for end in ends if end > now), default=rest))
