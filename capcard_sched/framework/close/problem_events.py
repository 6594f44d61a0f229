"""Events of invalid objects, ignored edits, doubled pods and devices, and mixed groups, once per problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.session.doubled_devices import double_texts
from capcard_sched.model import reasons
from capcard_sched.model.intents import EmitEvent
from capcard_sched.model.report_once import ReportOnce

if TYPE_CHECKING:
    from capcard_sched.model.intents import ObjectRef
    from capcard_sched.state.cluster import ClusterState


class ProblemEvents:
    """The problems that have their event."""

    def __init__(self) -> None:
        self._problems: ReportOnce[ObjectRef, str] = ReportOnce()
        self._ignored_affinity: ReportOnce[ObjectRef, str] = ReportOnce()
        #: Whether a plugin reads the affinity between groups.
        self.reads_affinity = False
        self._ignored_edits: ReportOnce[ObjectRef, str] = ReportOnce()
        self._two_groups: ReportOnce[ObjectRef, str] = ReportOnce()
        self._doubled: ReportOnce[ObjectRef, str] = ReportOnce()
        self._other_schedulers: ReportOnce[ObjectRef, str] = ReportOnce()

    def new(self, state: ClusterState) -> list[EmitEvent]:
        """The events of problems since the last call, in order of their objects."""
        intents: list[EmitEvent] = []
        ignored = {} if self.reads_affinity else state.affinities
        for reported, row, details in (
            (self._problems, reasons.INVALID_OBJECT, state.problems),
            (self._ignored_affinity, reasons.TOPOLOGY_AFFINITY_IGNORED, ignored),
            (self._ignored_edits, reasons.QUOTA_EVASION_IGNORED, state.ignored_edits.details),
            (self._two_groups, reasons.TWO_POD_GROUPS, state.kube_groups.two_groups),
            (self._doubled, reasons.DEVICE_ALLOCATED_TWICE, double_texts(state.claims)),
            (self._other_schedulers, reasons.OTHER_SCHEDULER, state.kube_groups.other_schedulers),
        ):
            if not (details or reported):
                continue
            reported.keep(details)
            new = (ref for ref in sorted(details) if reported.update(ref, (details[ref],)))
            intents += [EmitEvent(ref, row.type, row.code, row.render(detail=details[ref])) for ref in new]
        return intents
