"""Declaration of filters and scores of nodes: each states what it reads, and so how long its results hold.

A filter is called with (signature, node view, result) and rejects entries of the view in `result`; a score is called
with (signature, node view) and returns float64 [k], or None for equal scores.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, overload

if TYPE_CHECKING:
    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.api.plugin import Plugin

_Method = TypeVar("_Method", bound=Callable[..., Any])
#: A method of the plugin; its result for a signature must not change during a session.
When: TypeAlias = Callable[[Any, "PodSignature"], bool]


class NodeReads(IntEnum):
    """The inputs of a filter or score besides the signature, from few to all."""

    NODE_SPEC = 0
    NODE_AMOUNTS = 1
    NODE_PODS = 2
    CANDIDATES = 3
    OTHER_NODES = 4


NODE_SPEC, NODE_AMOUNTS, NODE_PODS, CANDIDATES, OTHER_NODES = NodeReads

#: What a method reads, and the time for which its results are kept.
MEANING: Final[dict[NodeReads, tuple[str, str]]] = {
    NODE_SPEC: ("name, labels, taints and allocatable amounts of the node", "until a node changes, across sessions"),
    NODE_AMOUNTS: (
        "also `used` and `nonzero_used` of the view, and the plugin's node state",
        "per node class: equal nodes are evaluated once",
    ),
    NODE_PODS: ("anything of this node", "until a pod is placed on or removed from the node"),
    CANDIDATES: (
        "also the other nodes of the view; for scores relative to them, None when they are equal on all",
        "not at all; pods are placed as with NODE_AMOUNTS while every score is None",
    ),
    OTHER_NODES: ("anything; the default", "not at all: called with all candidates before every pod"),
}


class NodeHook(NamedTuple):
    """The declaration of a filter or score."""

    kind: Literal["filter", "score"]
    reads: NodeReads = OTHER_NODES
    #: Whether the method applies to a signature; None: to all.
    when: When | None = None


_DECLARATION: Final = "node_hook"


class _Decorator:
    def __init__(self, kind: Literal["filter", "score"]) -> None:
        self._kind: Final = kind

    @overload
    def __call__(self, method: _Method) -> _Method: ...

    @overload
    def __call__(self, *, reads: NodeReads = ..., when: When | None = ...) -> Callable[[_Method], _Method]: ...

    def __call__(self, method: Any = None, *, reads: NodeReads = OTHER_NODES, when: When | None = None) -> Any:
        def declare(found: Callable[..., Any]) -> Callable[..., Any]:
            setattr(found, _DECLARATION, NodeHook(self._kind, reads, when))
            return found

        return declare if method is None else declare(method)


#: Decorators of a plugin's methods: `@filter(reads=NODE_SPEC, when=_is_gpu_pod)`.
filter: Final = _Decorator("filter")
score: Final = _Decorator("score")


def declared_hooks(plugin: type[Plugin]) -> dict[str, NodeHook]:
    """The filters and scores of a plugin class and of its parts by method name: in order of definition, bases first.

    A method that overrides one without a declaration of its own reads OTHER_NODES.
    """
    found: dict[str, NodeHook] = {}
    for owner in (owner for part in (*plugin.Parts, plugin) for owner in reversed(part.__mro__)):
        for name, value in vars(owner).items():
            declared: NodeHook | None = getattr(value, _DECLARATION, None)
            if declared is not None:
                found[name] = declared
            elif name in found:
                found[name] = NodeHook(found[name].kind)
    return found
