"""Labels that pods demand and no node has, and the labels that they most likely misspell.

Labels of nodes are collections of mappings: those of a session, or of the nodes in an input.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.model.objects import Requirement
from capcard_sched.model.resources import similar_resource
from capcard_sched.model.selectors import matches_node_selector

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from capcard_sched.model.objects import NodeSelector

#: Different values of a label up to which similar ones are searched: above, they are names.
_MOST_VALUES: Final = 500
_DIGITS: Final = re.compile(r"\d+")
#: Letters of the shortest names of which two letters may be transposed: shorter ones are codes.
_SHORTEST: Final = 4


class AbsentLabel(NamedTuple):
    """A demand that no labels satisfy."""

    #: `pool=trainin`, `the label pol`.
    text: str
    #: The label or value that it most likely misspells, "" for none.
    meant: str

    @property
    def hint(self) -> str:
        """The end of a sentence about it."""
        return f"; did you mean {self.meant}?" if self.meant else ""


def pairs_text(labels: Mapping[str, str]) -> str:
    """`pool=training, zone=a`."""
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def requirement_text(requirement: Requirement) -> str:
    """A requirement as `kubectl` writes selectors: `pool in (a, b)`, `!pool`."""
    key, values = requirement.key, ", ".join(requirement.values or ())
    if requirement.operator == "In" and len(requirement.values or ()) == 1:
        return f"{key}={values}"
    words = {"In": "in", "NotIn": "notin"}
    signs = {"Exists": key, "DoesNotExist": f"!{key}", "Gt": f"{key} > {values}", "Lt": f"{key} < {values}"}
    return signs.get(requirement.operator) or f"{key} {words.get(requirement.operator, '?')} ({values})"


def selector_text(selector: NodeSelector) -> str:
    """`pool=training, cores > 4 or zone=a`: the terms of a node selector."""
    return " or ".join(
        ", ".join(map(requirement_text, (*(term.match_expressions or ()), *(term.match_fields or ()))))
        for term in selector.node_selector_terms
    )


def absent_of(
    pairs: Mapping[str, str], selector: NodeSelector | None, nodes: Mapping[str, Mapping[str, str]]
) -> list[AbsentLabel]:
    """The demands of a node selector and of a required node affinity that no node satisfies. `nodes`: names to labels.

    Of an affinity only if no node matches any of its terms.
    """
    wanted = [Requirement(key, "In", (value,)) for key, value in sorted(pairs.items())]
    if selector is not None and not any(
        matches_node_selector(selector, labels, name) for name, labels in nodes.items()
    ):
        wanted += [each for term in selector.node_selector_terms for each in term.match_expressions or ()]
    return list(dict.fromkeys(absent(wanted, nodes.values())))


def absent(wanted: Iterable[Requirement], labels: Collection[Mapping[str, str]]) -> Iterator[AbsentLabel]:
    """The requirements `In` and `Exists` that none of some labels satisfy. O(labels) each."""
    for requirement in wanted:
        if requirement.operator not in ("In", "Exists"):
            continue
        key, values = requirement.key, requirement.values or ()
        present = {found for each in labels if (found := each.get(key)) is not None}
        if not present:
            yield AbsentLabel(f"the label {key}", _similar(key, {one for each in labels for one in each}))
        elif values and present.isdisjoint(values):
            near = [f"{key}={found}" for value in values if (found := _similar(value, present))]
            yield AbsentLabel(requirement_text(requirement), " or ".join(dict.fromkeys(near)))


def _similar(name: str, known: Collection[str]) -> str:
    """The known label or value that a name most likely misspells; "" for none.

    Names that differ in case or in the domain alone are similar; names that differ in numbers alone are others.
    """
    if len(known) > _MOST_VALUES:
        return ""
    folded, last, stem = name.casefold(), name.rpartition("/")[2], _DIGITS.sub("", name)
    alike = [one for one in sorted(known) if one.casefold() == folded or one.rpartition("/")[2] == last]
    if alike:
        return alike[0]
    others = [one for one in sorted(known) if _DIGITS.sub("", one) != stem]
    return next((one for one in others if _is_transposed(name, one)), "") or similar_resource(name, others)


def _is_transposed(name: str, other: str) -> bool:
    """Whether two names of at least four letters differ in the order of two adjacent letters: `trian`, `train`."""
    places = [number for number, pair in enumerate(zip(name, other, strict=False)) if pair[0] != pair[1]]
    if len(name) < _SHORTEST or len(name) != len(other) or len(places) != 2:
        return False
    first, second = places
    return second == first + 1 and name[first] == other[second] and name[second] == other[first]
