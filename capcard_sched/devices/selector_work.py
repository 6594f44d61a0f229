"""The work of selectors for each namespace in a session, counted in steps.

A tenant chooses the cost of a selector: a claim may have 65,536 characters of expressions, and an evaluation 100,000
steps, on each device. Evaluations beyond the bound of a namespace are left to the next session. Results are kept, so
that each session begins where the last one ended. A content of claims that takes too many of them is refused.
Steps are counted, not measured: a replay reaches the bounds at the same evaluations.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from capcard_sched.devices.claims import AllocationError

#: Steps of the selectors of one namespace in one session: about one CPU second.
MOST_STEPS: Final = 3_000_000
#: Steps for one content of claims until devices or classes change.
MOST_OF_CONTENT: Final = 32 * MOST_STEPS
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

    def begin(self, version: int) -> None:
        """A session begins. `version`: of devices and classes."""
        self._of_namespaces.clear()
        if version != self._version:
            self._version = version
            self._of_contents.clear()

    def is_exhausted(self, namespace: str) -> bool:
        """Whether the selectors of a namespace are evaluated further in the next session."""
        return self._of_namespaces[namespace] >= MOST_STEPS

    def is_refused(self, contents: tuple[bytes, ...]) -> bool:
        """Whether a content has used all its steps."""
        return self._of_contents[contents] >= MOST_OF_CONTENT

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
            text = (
                f"the selectors of the ResourceClaim take more than {MOST_OF_CONTENT} steps on the devices of the "
                "cluster: shorten spec.devices.requests[].selectors, or restrict them to fewer devices by a DeviceClass"
            )
            raise AllocationError(text, "gave_up")
        if self._work.is_exhausted(self._namespace):
            raise EvaluationsPostponedError(f"namespace {self._namespace}: {MOST_STEPS} steps of selectors")

    def evaluated(self, steps: int) -> None:
        """Counts an evaluation."""
        self._add(max(steps - FREE_STEPS, steps // 5))

    def compiles(self, characters: int) -> None:
        """Counts a compilation before it. Raises as `admit`."""
        self.admit()
        self._add(characters * STEPS_PER_CHARACTER - FREE_STEPS)

    def _add(self, steps: int) -> None:
        if steps > 0:
            self._work.add(self._namespace, self._contents, steps)
