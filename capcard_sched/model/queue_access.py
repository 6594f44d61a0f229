"""The annotation `capcard-sched.io/namespaces` of queues: the namespaces whose jobs a queue accepts.

Names and globs separated by commas (`team-a, team-b-*`), or a label selector as kubectl takes it
(`team in (a, b), tier!=test`). A text with an operator is a selector.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from capcard_sched.model.objects import LabelSelector, Requirement
from capcard_sched.model.selectors import label_selector_problem, matches_labels, namespace_labels

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Characters.
MAX_TEXT: Final = 4096
ACCEPTED: Final = "names and globs (team-a, team-b-*) or a label selector (team in (a, b), tier!=test)"

_NAME = re.compile(r"[a-z0-9*?]([a-z0-9*?-]{0,61}[a-z0-9*?])?")
_EQUALS = re.compile(r"([^\s!=(),]+)\s*(!=|==|=)\s*([^\s!=(),]*)")
_SET = re.compile(r"([^\s!=(),]+)\s+(in|notin)\s*\(([^()]*)\)")
_EXISTS = re.compile(r"(!?)\s*([^\s!=(),]+)")
_SEPARATOR = re.compile(r",(?![^()]*\))")


class NamespaceRule:
    """A parsed annotation."""

    def __init__(self, text: str) -> None:
        """Never raises: a malformed text accepts no namespace and has a `problem`."""
        self.problem = ""
        self._globs: tuple[str, ...] = ()
        self._selector: LabelSelector | None = None
        parts = [part.strip() for part in _SEPARATOR.split(text)] if text.strip() else []
        if len(text) > MAX_TEXT:
            self.problem = f"longer than {MAX_TEXT} characters"
        elif not parts:
            self.problem = "empty: it accepts no namespace"
        elif re.search(r"[=!()]", text):
            try:
                self._selector = parse_label_selector(text)
            except ValueError as error:
                self.problem = str(error)
        else:
            wrong = next((part for part in parts if not _NAME.fullmatch(part)), None)
            if wrong is None:
                self._globs = tuple(parts)
            else:
                self.problem = f"<{wrong[:64]}> is neither a namespace nor a glob"

    def accepts(self, namespace: str, labels: Mapping[str, str] | None) -> bool:
        """Whether the jobs of a namespace are accepted; `labels` of the namespace, None when it is unknown."""
        if self._selector is not None:
            return matches_labels(self._selector, namespace_labels(namespace, labels))
        return any(fnmatchcase(namespace, glob) for glob in self._globs)


@lru_cache(maxsize=1024)
def namespace_rule(text: str) -> NamespaceRule:
    """The rule of an annotation text."""
    return NamespaceRule(text)


def parse_label_selector(text: str) -> LabelSelector:
    """A label selector as kubectl takes it: `team in (a, b), tier!=test, gpu`. Raises ValueError."""
    found = []
    for part in (part.strip() for part in _SEPARATOR.split(text)):
        requirement = _requirement(part)
        if requirement is None:
            raise ValueError(f"<{part[:64]}> is not a requirement of a label selector")
        found.append(requirement)
    selector = LabelSelector(match_expressions=tuple(found))
    problem = label_selector_problem(selector)
    if problem:
        raise ValueError(problem)
    return selector


def _requirement(text: str) -> Requirement | None:
    if match := _SET.fullmatch(text):
        values = tuple(value.strip() for value in match[3].split(","))
        return Requirement(key=match[1], operator="In" if match[2] == "in" else "NotIn", values=values)
    if match := _EQUALS.fullmatch(text):
        return Requirement(key=match[1], operator="NotIn" if match[2] == "!=" else "In", values=(match[3],))
    if match := _EXISTS.fullmatch(text):
        return Requirement(key=match[2], operator="DoesNotExist" if match[1] else "Exists")
    return None
