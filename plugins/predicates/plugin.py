"""The predicates plugin: its hooks over the checks of the neighbouring modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.node_index import NodeIndex
from capcard_sched.framework.plugin import Plugin
from capcard_sched.framework.rows import Diagnosis
from capcard_sched.model.refusal import Code, Refusal
from capcard_sched.plugins.predicates import node_checks, pod_affinity
from capcard_sched.plugins.predicates.arguments import PredicatesArguments
from capcard_sched.plugins.predicates.host_ports import HostPorts
from capcard_sched.plugins.predicates.rules import PodRules, RuleBook
from capcard_sched.plugins.predicates.topology_spread import TopologySpread

if TYPE_CHECKING:
    from typing import Any

    from capcard_sched.framework.plugin import Placement
    from capcard_sched.framework.rows import NodeRows, Profile, Verdict
    from capcard_sched.framework.session import Session
    from capcard_sched.model.task import Task


class Predicates(Plugin):
    """May this pod go to that node, by the rules of Kubernetes."""

    name = "predicates"
    Arguments = PredicatesArguments
    arguments: PredicatesArguments

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self._enabled = self.arguments
        self._index = NodeIndex(())
        self._generation = -1
        self._ports = HostPorts()
        self._rules = RuleBook(self._enabled)
        self._spread = TopologySpread()
        #: The diagnosis whose entries were already checked for their pod count.
        self._counted: Diagnosis | None = None

    def open(self, session: Session) -> None:
        table = session.nodes
        outdated = table.generation != self._generation or len(self._index) != len(table) or self._index.crowded
        if session.changed.everything or outdated:
            self._index = NodeIndex(table.nodes)
            self._generation = table.generation
        self._counted = None
        if self._enabled.node_ports:
            self._ports.open(session)
        self._rules.open(session, self._index)

    def close(self, session: Session) -> None:
        self._counted = None

    # --- what a profile is ------------------------------------------------------------------------------------------

    def task_context(self, task: Task) -> PodRules | None:
        return self._rules.rules(task)

    def domain_bound(self, profile: Profile) -> bool:
        return profile.context(self.name) is not None

    def row_private(self, profile: Profile) -> bool:
        return bool(profile.cls.host_ports) and self._enabled.node_ports

    # --- feasibility ------------------------------------------------------------------------------------------------

    def pre_predicate(self, profile: Profile) -> Refusal | None:
        rules: PodRules | None = profile.context(self.name)
        if rules is None or not rules.error:
            return None
        return Refusal("pre_predicate", self.name, "Unschedulable", rules.error, code=Code.UNRESOLVABLE)

    def predicate_static(self, profile: Profile, rows: NodeRows, verdict: Verdict) -> None:
        if isinstance(verdict, Diagnosis):
            # The pod count comes first, so that it is told of nodes that are refused for good as well.
            node_checks.reject_full(rows, verdict)
            self._counted = verdict
        cls, index = profile.cls, self._index
        node_checks.reject_cordoned(index, cls, rows, verdict)
        if self._enabled.node_affinity:
            node_checks.reject_by_affinity(index, cls, rows, verdict)
        if self._enabled.taint_toleration:
            node_checks.reject_tainted(index, cls, rows, verdict)

    def predicate(self, profile: Profile, rows: NodeRows, verdict: Verdict) -> None:
        # Every request has a pod slot in it: only who wants to know the reason needs the count besides the fit.
        if isinstance(verdict, Diagnosis) and verdict is not self._counted:
            node_checks.reject_full(rows, verdict)
        wanted = profile.cls.host_ports
        if wanted and self._enabled.node_ports:
            self._ports.reject(wanted, rows, verdict)

    def predicate_domain(self, profile: Profile, rows: NodeRows, verdict: Verdict) -> None:
        rules: PodRules | None = profile.context(self.name)
        if rules is None:
            return
        pod_affinity.reject(self._index, rules, rows, verdict)
        if rules.spread:
            self._spread.reject(self._index, profile.cls, rules.spread, rows, verdict)

    # --- keeping up -------------------------------------------------------------------------------------------------

    def on_allocate(self, placement: Placement) -> None:
        if self._enabled.node_ports:
            self._ports.place(placement)
        self._rules.counters.place(placement)

    def on_deallocate(self, placement: Placement) -> None:
        if self._enabled.node_ports:
            self._ports.displace(placement)
        self._rules.counters.displace(placement)
