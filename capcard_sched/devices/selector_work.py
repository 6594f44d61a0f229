"""The work of selectors for each namespace in a session, counted in steps.

A tenant chooses the cost of a selector: a claim may have 65,536 characters of expressions, and an evaluation 100,000
steps, on each device. Evaluations beyond the bound of a namespace are left to the next session. Results are kept, so
that each session begins where the last one ended. A content of claims is refused for an evaluation whose steps, on all
devices and for all selectors of the claim, are too many: also where the result is kept, so that a scheduler refuses the
same contents after a restart. Steps are counted, not measured: a replay reaches the bounds at the same evaluations.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from capcard_sched.devices.claims import AllocationError

#: Steps of the selectors of one namespace in one session: about one CPU second.
MOST_STEPS: Final = 3_000_000
#: Steps of the selectors of one content of claims on all devices.
MOST_OF_CONTENT: Final = 32 * MOST_STEPS
#: Multiple of that after which a content of claims is refused: results beyond those kept are evaluated again.
_REPEATED: Final = 2
#: Steps of an evaluation of which one in five counts: a claim may have hundreds of short selectors. Those of usual
#: selectors are 10 to 40.
FREE_STEPS: Final = 100
#: Steps that the compilation of a character costs.
STEPS_PER_CHARACTER: Final = 6
#: Contents of claims of which steps are counted: tenants write them.
_MOST_CONTENTS: Final = 4096


class EvaluationsPostponedError(Exception):
    """The next session evaluates the rest of the selectors of a namespace."""


class SelectorWork:
    """Steps of each namespace in the session, and of each content of claims while devices and classes stay."""

    def __init__(self) -> None:
        self._of_namespaces = Counter[str]()
        self._of_contents = Counter[tuple[bytes, ...]]()
        self._version = -1
        self._devices = 0

    def begin(self, version: int, devices: int) -> None:
        """A session begins. `version`: of devices and classes; `devices`: their number."""
        self._of_namespaces.clear()
        self._devices = devices
        if version != self._version:
            self._version = version
            self._of_contents.clear()

    def is_exhausted(self, namespace: str) -> bool:
        """Whether the selectors of a namespace are evaluated further in the next session."""
        return self._of_namespaces[namespace] >= MOST_STEPS

    def is_refused(self, contents: tuple[bytes, ...]) -> bool:
        """Whether the evaluations for a content were repeated too often."""
        return self._of_contents[contents] >= _REPEATED * MOST_OF_CONTENT

    def is_affordable(self, steps: int, selectors: int) -> bool:
        """Whether the steps of an evaluation, times all devices and this number of selectors, are within the bound."""
        return _counted(steps) * selectors * self._devices <= MOST_OF_CONTENT

    def add(self, namespace: str, contents: tuple[bytes, ...], steps: int) -> None:
        """Counts steps for claims of a content."""
        if contents not in self._of_contents and len(self._of_contents) >= _MOST_CONTENTS:
            self._of_contents.clear()
        self._of_contents[contents] += steps
        self._of_namespaces[namespace] += steps


class SelectorMeter:
    """Counts the evaluations for claims of one content."""

    __slots__ = ("_contents", "_ends", "_namespace", "_work")

    def __init__(self, work: SelectorWork, namespace: str, contents: tuple[bytes, ...], *, ends: bool) -> None:
        """`ends`: whether evaluations end at the bounds; else they are counted only."""
        self._work, self._namespace, self._contents, self._ends = work, namespace, contents, ends

    def admit(self) -> None:
        """To be called before an evaluation.

        Raises EvaluationsPostponedError beyond the bound of the namespace, AllocationError beyond that of the content.
        """
        if not self._ends:
            return
        if self._work.is_refused(self._contents):
            raise _refusal()
        if self._work.is_exhausted(self._namespace):
            raise EvaluationsPostponedError(f"namespace {self._namespace}: {MOST_STEPS} steps of selectors")

    def evaluated(self, steps: int) -> None:
        """Counts an evaluation."""
        self._add(_counted(steps))

    def judge(self, steps: int, selectors: int) -> None:
        """To be called with the steps of a result, new or kept. Raises AllocationError beyond the bound of a content.

        `selectors`: the number of those of the claim.
        """
        if self._ends and not self._work.is_affordable(steps, selectors):
            raise _refusal()

    def compiles(self, characters: int) -> None:
        """Counts a compilation before it. Raises as `admit`."""
        self.admit()
        self._add(characters * STEPS_PER_CHARACTER - FREE_STEPS)

    def _add(self, steps: int) -> None:
        if steps > 0:
            self._work.add(self._namespace, self._contents, steps)


def _counted(steps: int) -> int:
    return max(steps - FREE_STEPS, steps // 5)


def _refusal() -> AllocationError:
    text = (
        f"the selectors of the ResourceClaim would take more than {MOST_OF_CONTENT} steps on all devices of the "
        "cluster: shorten spec.devices.requests[].selectors, or use fewer selectors"
    )
    return AllocationError(text, "gave_up")
