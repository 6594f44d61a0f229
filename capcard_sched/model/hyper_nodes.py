"""HyperNodes (topology.volcano.sh/v1alpha1): performance domains of the network, and the tree they form.

Nodes below a HyperNode of a lower tier are closer to each other. A tree numbers HyperNodes in order of tier and name,
so that loops over them are deterministic; -1 means none.
"""

from __future__ import annotations

import re
from copy import copy
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import numpy as np

from capcard_sched.model.objects import ApiStruct, LabelSelector, ObjectMeta
from capcard_sched.model.selectors import label_selector_problem, matches_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from capcard_sched.model.objects import NetworkTopologySpec

    Numbers = npt.NDArray[np.intp]

#: Default of `highestTierAllowed`.
DEFAULT_TIER: Final = 1
_LONGEST_PATTERN = 512
_MEMBER_TYPES = ("Node", "HyperNode")
_MODES = ("hard", "soft")


# --- API objects ----------------------------------------------------------------------------------------------------


class ExactMatch(ApiStruct, frozen=True):
    """Selects one object by name."""

    name: str = ""


class RegexMatch(ApiStruct, frozen=True):
    """Selects the objects whose name matches a regular expression."""

    pattern: str = ""


class MemberSelector(ApiStruct, frozen=True):
    """Exactly one of the three fields is set."""

    exact_match: ExactMatch | None = None
    regex_match: RegexMatch | None = None
    label_match: LabelSelector | None = None


class MemberObject(ApiStruct, frozen=True):
    type: str = ""
    selector: MemberSelector = MemberSelector()


class HyperNodeSpec(ApiStruct, frozen=True):
    tier: int | None = None
    tier_name: str | None = None
    members: tuple[MemberObject, ...] | None = None


class HyperNodeObject(ApiStruct, frozen=True, tag="HyperNode", tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: HyperNodeSpec = HyperNodeSpec()


# --- cached facts ---------------------------------------------------------------------------------------------------


class Member(msgspec.Struct, frozen=True):
    """One entry of `spec.members`: selects by one of name, pattern and labels."""

    #: Index in the list, for messages.
    position: int
    of: Literal["Node", "HyperNode"]
    name: str = ""
    pattern: str = ""
    labels: LabelSelector | None = None

    @property
    def field(self) -> str:
        """Path of the selector in the object."""
        at = f"spec.members[{self.position}].selector"
        if self.name:
            return f"{at}.exactMatch.name"
        return f"{at}.regexMatch.pattern" if self.pattern else f"{at}.labelMatch"

    def matcher(self) -> Callable[[str, Mapping[str, str]], bool]:
        """Whether a pattern or labels select a node, by its name and labels."""
        if self.pattern:
            search = re.compile(self.pattern).search
            return lambda name, _: search(name) is not None
        return lambda _, labels: matches_labels(self.labels, labels)


class HyperNode(msgspec.Struct, frozen=True):
    """One HyperNode with its valid members."""

    name: str
    tier: int
    tier_name: str
    members: tuple[Member, ...]


def hyper_node_facts(obj: HyperNodeObject) -> tuple[HyperNode | None, str]:
    """The facts of a HyperNode, None without a valid tier, and the problems of its fields ("" for none)."""
    problems: list[str] = []
    members = []
    for position, raw in enumerate(obj.spec.members or ()):
        member = _member(position, raw, problems)
        if member is not None:
            members.append(member)
    tier = obj.spec.tier
    if tier is None or tier < 0:
        problems.insert(0, f"spec.tier: {'missing' if tier is None else tier}; expected a whole number from 0 on")
        return None, "; ".join(problems)
    return HyperNode(obj.metadata.name, tier, obj.spec.tier_name or "", tuple(members)), "; ".join(problems)


def _member(position: int, raw: MemberObject, problems: list[str]) -> Member | None:
    at, selector = f"spec.members[{position}]", raw.selector
    if raw.type not in _MEMBER_TYPES:
        problems.append(f"{at}.type: {raw.type!r} is neither Node nor HyperNode")
        return None
    given = [part for part in (selector.exact_match, selector.regex_match, selector.label_match) if part is not None]
    if len(given) != 1:
        problems.append(f"{at}.selector: give exactly one of exactMatch, regexMatch and labelMatch, not {len(given)}")
        return None
    of: Literal["Node", "HyperNode"] = "Node" if raw.type == "Node" else "HyperNode"
    if selector.exact_match is not None:
        if not selector.exact_match.name:
            problems.append(f"{at}.selector.exactMatch.name: empty; give the name of a {of}")
            return None
        return Member(position, of, name=selector.exact_match.name)
    if selector.regex_match is not None:
        wrong = _pattern_problem(selector.regex_match.pattern)
        if wrong:
            problems.append(f"{at}.selector.regexMatch.pattern: {wrong}")
            return None
        return Member(position, of, pattern=selector.regex_match.pattern)
    if of == "HyperNode":
        problems.append(f"{at}.selector.labelMatch: labels select members of type Node only; use exactMatch")
        return None
    bad = label_selector_problem(selector.label_match)
    if bad:
        problems.append(f"{at}.selector.labelMatch: {bad}")
        return None
    return Member(position, of, labels=selector.label_match)


def _pattern_problem(pattern: str) -> str:
    if not pattern:
        return "empty; give a regular expression"
    if len(pattern) > _LONGEST_PATTERN:
        return f"{len(pattern)} characters; a regular expression of at most {_LONGEST_PATTERN} is accepted"
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"{pattern!r} is not a regular expression: {error}"
    return ""


# --- the tree -------------------------------------------------------------------------------------------------------


class HyperNodeTree:
    """HyperNodes below each other, and the nodes below them. Immutable.

    `leaf` has, by node row, the number of the lowest HyperNode that contains the node: intp [nodes].
    """

    def __init__(
        self,
        members: Sequence[HyperNode],
        parents: Sequence[int],
        leaf_of: Mapping[str, int],
        *,
        version: int = 0,
        label: str = "",
        by_label: Callable[[str], HyperNodeTree] | None = None,
    ) -> None:
        """`members` in order of tier and name, `parents` by number; `leaf_of`: node name to number.

        `label`: the node label whose values are the members; `by_label` returns the tree of a label.
        """
        self.names = tuple(one.name for one in members)
        self.numbers = {name: number for number, name in enumerate(self.names)}
        #: int64 [HyperNodes].
        self.tiers = np.array([one.tier for one in members], dtype=np.int64)
        #: intp [HyperNodes].
        self.parents: Numbers = np.array(parents, dtype=np.intp)
        self.leaf_of = leaf_of
        #: Tier to the numbers of its HyperNodes; tiers ascending.
        self.by_tier: dict[int, list[int]] = {}
        for number, one in enumerate(members):
            self.by_tier.setdefault(one.tier, []).append(number)
        #: Tier names; the lowest tier applies when several share a name.
        self.tier_names: dict[str, int] = {}
        for one in members:
            if one.tier_name:
                self.tier_names.setdefault(one.tier_name, one.tier)
        #: Distinct for distinct trees.
        self.version = version
        #: The node label whose values are the domains; "" for a tree of HyperNodes.
        self.label = label
        self._by_label = by_label
        self._meets: dict[int, Numbers] = {}
        self.leaf: Numbers = np.zeros(0, dtype=np.intp)
        #: HyperNode to its rows.
        self._rows: dict[int, Numbers] = {}

    def __len__(self) -> int:
        return len(self.names)

    @property
    def ready(self) -> bool:
        """Whether the tree has HyperNodes."""
        return bool(self.names)

    def labeled(self, label: str) -> HyperNodeTree:
        """The tree of the values of a node label over the same nodes; this one for ""."""
        return self if not label or self._by_label is None else self._by_label(label)

    def of(self, topology: NetworkTopology | None) -> HyperNodeTree:
        """The tree of a network topology: that of its node label, else of the HyperNodes."""
        return self if topology is None else self.labeled(topology.label or "")

    def is_like(self, other: HyperNodeTree) -> bool:
        """Whether two trees are equal, apart from versions and rows."""
        return (
            self.names == other.names
            and np.array_equal(self.tiers, other.tiers)
            and np.array_equal(self.parents, other.parents)
            and self.leaf_of == other.leaf_of
            and self.tier_names == other.tier_names
        )

    def over(self, nodes: Iterable[str]) -> HyperNodeTree:
        """The same tree with `leaf` for nodes in this order of rows."""
        fresh = copy(self)
        fresh._rows = {}
        leaf_of = self.leaf_of
        fresh.leaf = np.array([leaf_of.get(name, -1) for name in nodes], dtype=np.intp)
        return fresh

    def meets(self, number: int) -> Numbers:
        """The lowest common ancestor of a HyperNode with each other one, -1 for none: intp [HyperNodes]."""
        found = self._meets.get(number)
        if found is None:
            above = np.zeros(len(self) + 1, dtype=bool)  # the last entry is for -1
            at = number
            while at >= 0:
                above[at] = True
                at = int(self.parents[at])
            found = np.arange(len(self), dtype=np.intp)
            climbing = ~above[found]
            while climbing.any():
                found[climbing] = self.parents[found[climbing]]
                climbing = (found >= 0) & ~above[found]
            self._meets[number] = found
        return found

    def common(self, numbers: Iterable[int]) -> int:
        """The lowest common ancestor of HyperNodes; -1 for none, and for an empty argument."""
        found = -2
        for number in numbers:
            if number < 0 or found == -1:
                return -1
            found = number if found == -2 else int(self.meets(found)[number])
        return max(found, -1)

    def rows_of(self, number: int) -> Numbers:
        """Rows of the nodes below a HyperNode: intp, ascending; not to be changed."""
        rows = self._rows.get(number)
        if rows is None:
            # 8 bytes per node and tier; 40 µs at 5,000 nodes, and every gang in hard mode takes those of all HyperNodes
            rows = self._rows[number] = np.flatnonzero(self.mask_of(self.meets(number) == number))
        return rows

    def mask_of(self, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Whether the lowest HyperNode of each row is selected (`chosen`: bool [HyperNodes]): bool [nodes]."""
        return np.append(chosen, False)[self.leaf]


#: The empty tree.
NO_TREE: Final = HyperNodeTree((), (), {})


# --- requests of jobs -----------------------------------------------------------------------------------------------


class NetworkTopology(msgspec.Struct, frozen=True):
    """`spec.networkTopology` of a PodGroup."""

    #: True: `highest` is a constraint; False: lower tiers are preferred.
    hard: bool
    #: The highest tier that the pods may span.
    highest: int
    #: The same by the name of the tier; "" when it is given by number.
    highest_name: str = ""
    #: Node label whose values are the domains, instead of HyperNodes; unset for none.
    label: str | msgspec.UnsetType = msgspec.UNSET

    def allowed(self, tree: HyperNodeTree) -> int | None:
        """The highest allowed tier as a number; None when the tree has no tier of the name."""
        return tree.tier_names.get(self.highest_name) if self.highest_name else self.highest


def network_topology(
    raw: NetworkTopologySpec | None, problems: list[str], field: str = "spec.networkTopology"
) -> NetworkTopology | None:
    """A networkTopology of a PodGroup. An invalid field adds a line to `problems` and gets the stricter value."""
    if raw is None:
        return None
    mode, highest, name = raw.mode or "hard", raw.highest_tier_allowed, raw.highest_tier_name or ""
    if mode not in _MODES:
        problems.append(f"{field}.mode: {mode!r} is neither hard nor soft; taken as hard")
    if highest is not None and name:
        problems.append(f"{field}: highestTierAllowed and highestTierName exclude each other; taken as tier {highest}")
        name = ""
    return NetworkTopology(mode != "soft", DEFAULT_TIER if highest is None else highest, name)
