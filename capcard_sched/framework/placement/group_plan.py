"""The search for nodes of a tree of groups: which subgroups start, in which domains, and one node for each pod.

It counts free amounts and the nodes that each pod may use; the caller places the pods on a statement, where all other
filters and the quotas decide. Small problems are searched exhaustively, so that a plan is found if one exists;
of larger ones a few orders are tried, each without going back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.framework.placement.group_problem import PlanChoice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.framework.placement.group_problem import PlanGoal, PlanPlace, PlanPod, PlanUnit, PodKind

#: Largest problem that is searched exhaustively: nodes, units, and pods of them.
_MOST_NODES: Final = 16
_MOST_UNITS: Final = 24
_MOST_PODS: Final = 32
#: Steps after which the search of one domain ends.
MOST_STEPS: Final = 40_000


class GroupPlan:
    """One search in one domain of the job. `search` returns the units of a start, None without one."""

    def __init__(
        self,
        free: Sequence[Sequence[int]],
        total: Sequence[Sequence[int]],
        kinds: Sequence[PodKind],
        units: Sequence[PlanUnit],
        goal: PlanGoal,
    ) -> None:
        """`free` and `total`: amounts by node and resource."""
        self._free = [list(amounts) for amounts in free]
        self._total = total
        self._kinds = kinds
        self._units = {unit.number: unit for unit in units}
        self._order = list(units)
        #: Nodes of equal classes are in the same places and accept the same pods.
        self._classes: dict[int, int] = {}
        self._subgroups, self._pods, self._roles = list(goal.subgroups), goal.pods, dict(goal.roles)
        #: Units that others follow: their choice of pods matters.
        self._leaders = {unit.follows for unit in units}
        self._chosen: dict[int, PlanChoice] = {}
        #: Free and total amounts of places by number, and by node the numbers of the places that count it.
        self._sums: dict[int, tuple[list[int], list[int]]] = {}
        self._within: dict[int, list[int]] = {}
        self._failed: set[object] = set()
        self._steps = 0
        #: Whether the search ended at its limit, so that no result is proven.
        self.ended = False

    def search(self) -> list[PlanChoice] | None:
        """The units to be placed, in order."""
        if not self._can_meet(0, frozenset()) or self._is_out_of_reach():
            return None
        nodes = {node for unit in self._order for place in unit.places for node in place.nodes}
        pods = sum(len(unit.pods) for unit in self._order if unit.follows < 0)
        if len(nodes) <= _MOST_NODES and len(self._order) <= _MOST_UNITS and pods <= _MOST_PODS:
            self._classify(nodes)
            found = self._solve(0, frozenset())
        else:
            found = self._try_orders()
        return list(self._chosen.values()) if found else None

    def _classify(self, nodes: set[int]) -> None:
        places = {place.number: place for unit in self._order for place in unit.places}
        known: dict[object, int] = {}
        for node in sorted(nodes):
            within = tuple(number for number, place in places.items() if node in place.nodes)
            accepts = tuple(kind.nodes[node] for kind in self._kinds)
            self._classes[node] = known.setdefault((within, accepts), len(known))

    # --- progress ---------------------------------------------------------------------------------------------------

    def _is_met(self) -> bool:
        return self._pods <= 0 and max(self._subgroups, default=0) <= 0 and max(self._roles.values(), default=0) <= 0

    def _can_meet(self, at: int, dead: frozenset[object]) -> bool:
        """Whether the units from `at` on could meet the goal, if all but the `dead` ones had nodes."""
        subgroups, pods, roles = list(self._subgroups), self._pods, dict(self._roles)
        if self._is_met():
            return True
        for unit in self._order[at:]:
            if not unit.places or _key(unit) in dead:
                continue
            if unit.policy >= 0:
                subgroups[unit.policy] -= 1
            pods -= unit.need
            for pod in unit.pods if roles else ():
                if pod.role:
                    roles[pod.role] -= 1
        return pods <= 0 and max(subgroups, default=0) <= 0 and max(roles.values(), default=0) <= 0

    def _is_out_of_reach(self) -> bool:
        """Whether the widest places fit too few of the equal units of a policy, even without all others."""
        for policy, missing in enumerate(self._subgroups):
            units = [unit for unit in self._order if unit.policy == policy] if missing > 0 else []
            kinds = {(pod.kind, unit.need, unit.places) for unit in units for pod in unit.pods}
            if len(kinds) != 1:
                continue
            ((kind, need, places),) = kinds
            request, fits, covered = self._kinds[kind].request, 0, set[int]()
            for place in sorted(places, key=lambda place: -len(place.nodes)):
                if covered.isdisjoint(place.nodes[:1]):  # places contain each other, or share no node
                    covered.update(place.nodes)
                    fits += (
                        sum(self._times(node, request) for node in place.nodes if self._kinds[kind].nodes[node]) // need
                    )
            if fits < missing:
                return True
        return False

    def _times(self, node: int, request: tuple[int, ...]) -> int:
        """How often a request fits a node."""
        return min(
            (free // amount for free, amount in zip(self._free[node], request, strict=True) if amount), default=0
        )

    def _have_volume(self, at: int) -> bool:
        """Whether all nodes together have the amounts of the smallest pods that are lacking."""
        if self._pods <= 0:
            return True
        pods = [pod for unit in self._order[at:] if unit.follows < 0 for pod in unit.pods]
        for leader in self._chosen.keys() & self._leaders:
            pods += self._left(leader)
        requests = [self._kinds[pod.kind].request for pod in pods]
        if len(requests) < self._pods:
            return False
        free = [sum(column) for column in zip(*(self._free[node] for node in self._classes), strict=True)]
        smallest = (sum(sorted(column)[: self._pods]) for column in zip(*requests, strict=True))
        return all(map(int.__le__, smallest, free))

    def _choose(self, unit: PlanUnit, place: PlanPlace, pods: tuple[tuple[PlanPod, int], ...], sign: int) -> None:
        """Counts a placed unit (+1), or undoes that (-1)."""
        if unit.policy >= 0:
            self._subgroups[unit.policy] -= sign
        self._pods -= sign * unit.need
        for pod, _ in pods:
            if pod.role:
                self._roles[pod.role] -= sign
        if sign > 0:
            chosen = tuple((pod.number, node) for pod, node in pods)
            self._chosen[unit.number] = PlanChoice(unit.number, place, chosen)
        else:
            del self._chosen[unit.number]

    def _take(self, node: int, kind: PodKind, sign: int) -> None:
        counted = [self._free[node], *(self._sums[number][0] for number in self._within.get(node, ()))]
        for free in counted:
            for column, amount in enumerate(kind.request):
                free[column] -= sign * amount

    def _has_room(self, node: int, kind: PodKind) -> bool:
        return kind.nodes[node] and all(map(int.__ge__, self._free[node], kind.request))

    # --- places and pods of a unit ----------------------------------------------------------------------------------

    def _places_of(self, unit: PlanUnit) -> list[PlanPlace]:
        """The places of a unit: lowest tier, then the fuller one with all its pods, then by number."""
        if unit.follows >= 0 and unit.follows in self._units:
            leader = self._chosen.get(unit.follows)
            return [] if leader is None else [leader.place]
        if len(unit.places) < 2:
            return list(unit.places)
        wanted = [sum(column) for column in zip(*(self._kinds[pod.kind].request for pod in unit.pods), strict=True)]
        return sorted(unit.places, key=lambda place: (place.tier, -self._fullness(place, wanted), place.number))

    def _fullness(self, place: PlanPlace, wanted: Sequence[int]) -> float:
        """The mean utilization of the requested resources in a place with requests, 0 to 1; 0 where they do not fit."""
        free, total = self._amounts_of(place)
        shares = []
        for column, amount in enumerate(wanted):
            if amount > free[column]:
                return 0.0
            if amount > 0:
                shares.append((total[column] - free[column] + amount) / total[column])
        return sum(shares) / len(shares) if shares else 0.0

    def _amounts_of(self, place: PlanPlace) -> tuple[list[int], list[int]]:
        """Free and total amounts of a place, kept up to date from the first call on."""
        known = self._sums.get(place.number)
        if known is None:
            free, total = [amount for amount, _ in place.closed], [amount for _, amount in place.closed]
            for node in place.nodes:
                self._within.setdefault(node, []).append(place.number)
                for column, amount in enumerate(self._free[node]):
                    free[column] += amount
                    total[column] += self._total[node][column]
            known = self._sums[place.number] = free, total
        return known

    def _pods_of(self, unit: PlanUnit) -> list[PlanPod]:
        """The pods of a unit that are not placed yet, equal ones behind each other, the largest first."""
        pods = unit.pods
        if unit.follows in self._chosen:
            taken = {number for number, _ in self._chosen[unit.follows].pods}
            taken.update(
                number
                for choice in self._chosen.values()
                if self._units[choice.unit].follows == unit.follows
                for number, _ in choice.pods
            )
            pods = tuple(pod for pod in pods if pod.number not in taken)
        if len({(pod.kind, pod.role) for pod in pods}) < 2:
            return list(pods)
        kinds = self._kinds
        return sorted(pods, key=lambda pod: ([-amount for amount in kinds[pod.kind].request], pod.kind, pod.role))

    def _nodes_of(self, place: PlanPlace) -> list[int]:
        """The nodes of a place, the fuller first: large holes are kept."""
        return sorted(place.nodes, key=lambda node: (self._free[node], node))

    # --- the exhaustive search --------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        self._steps += 1
        self.ended = self.ended or self._steps > MOST_STEPS
        return self.ended

    def _solve(self, at: int, dead: frozenset[object]) -> bool:
        """Whether the units from `at` on meet the goal. `dead`: those like these have no nodes any more."""
        if self._is_met():
            return True
        if self._is_over() or at == len(self._order) or not self._can_meet(at, dead) or not self._have_volume(at):
            return False
        state = self._state(at)
        if state in self._failed:
            return False
        unit = self._order[at]
        fits = False
        if _key(unit) not in dead:
            for place in self._places_of(unit):
                for pods in self._fill(self._pods_of(unit), 0, unit.need, self._nodes_of(place), [], 0):
                    fits = True
                    self._choose(unit, place, pods, +1)
                    if self._solve(at + 1, dead):
                        return True
                    self._choose(unit, place, pods, -1)
                    if self.ended:
                        return False
        if self._solve(at + 1, dead if fits or unit.follows >= 0 else dead | {_key(unit)}):
            return True
        if not self.ended:
            self._failed.add(state)
        return False

    def _state(self, at: int) -> object:
        """What the rest of the search depends on."""
        leaders = tuple(
            (choice.unit, choice.place.number, tuple(sorted(pod.kind for pod in self._left(choice.unit))))
            for choice in self._chosen.values()
            if choice.unit in self._leaders
        )
        goal = (*self._subgroups, self._pods, *self._roles.values())
        free = tuple(sorted((number, *self._free[node]) for node, number in self._classes.items()))
        return at, free, goal, leaders

    def _left(self, leader: int) -> list[PlanPod]:
        """The pods of a unit that neither it nor one that follows it has placed."""
        placed = {
            number
            for choice in self._chosen.values()
            if choice.unit == leader or self._units[choice.unit].follows == leader
            for number, _ in choice.pods
        }
        return [pod for pod in self._units[leader].pods if pod.number not in placed]

    def _fill(
        self,
        pods: list[PlanPod],
        at: int,
        need: int,
        nodes: list[int],
        picked: list[tuple[PlanPod, int]],
        first: int,
    ) -> Iterator[tuple[tuple[PlanPod, int], ...]]:
        """All ways to place `need` of the pods from `at` on, without those that are alike.

        The amounts are taken while a way is tried. `first`: position of the first node for the next pod; equal
        pods use nodes in order.
        """
        if not need:
            yield tuple(picked)
            return
        if len(pods) - at < need or self._is_over():
            return
        pod = pods[at]
        kind = self._kinds[pod.kind]
        seen: set[object] = set()
        behind = at + 1
        while behind < len(pods) and (pods[behind].kind, pods[behind].role) == (pod.kind, pod.role):
            behind += 1
        for position in range(first, len(nodes)):
            node = nodes[position]
            if not self._has_room(node, kind):
                continue
            twin = (self._classes[node], *self._free[node])
            if twin in seen:
                continue
            seen.add(twin)
            self._take(node, kind, +1)
            picked.append((pod, node))
            yield from self._fill(pods, at + 1, need - 1, nodes, picked, position if at + 1 < behind else 0)
            picked.pop()
            self._take(node, kind, -1)
            if self.ended:
                return
        if len(pods) - behind >= need:  # without this pod and those like it
            yield from self._fill(pods, behind, need, nodes, picked, 0)

    # --- large problems ---------------------------------------------------------------------------------------------

    def _try_orders(self) -> bool:
        """Tries some orders of the units and places; each unit gets the first place that fits it."""
        self.ended = True
        largest = sorted(self._order, key=lambda unit: (unit.follows >= 0, unit.policy < 0, -self._size_of(unit)))
        for order in (self._order, largest):
            for tightest in (False, True):
                if self._place_in_order(order, tightest=tightest):
                    return True
        return False

    def _size_of(self, unit: PlanUnit) -> int:
        return sum(sum(self._kinds[pod.kind].request) for pod in unit.pods)

    def _place_in_order(self, order: Sequence[PlanUnit], *, tightest: bool) -> bool:
        free = [list(amounts) for amounts in self._free]
        self._sums, self._within = {}, {}
        goal = list(self._subgroups), self._pods, dict(self._roles)
        self._chosen = {}
        dead: set[object] = set()
        for unit in order:
            if self._is_met():
                return True
            if _key(unit) in dead or not self._is_wanted(unit):
                continue
            places = self._places_of(unit)
            if tightest:
                places.sort(key=lambda place: (sum(self._amounts_of(place)[0]), place.number))
            for place in places:
                pods = self._fill_once(unit, place)
                if pods is not None:
                    self._choose(unit, place, pods, +1)
                    break
            else:
                dead.add(_key(unit))
        if self._is_met():
            return True
        self._free, self._chosen = free, {}
        self._subgroups, self._pods, self._roles = goal
        return False

    def _is_wanted(self, unit: PlanUnit) -> bool:
        """Whether a unit brings the goal nearer."""
        if unit.policy >= 0 and self._subgroups[unit.policy] > 0:
            return True
        return self._pods > 0 or any(pod.role and self._roles[pod.role] > 0 for pod in unit.pods)

    def _fill_once(self, unit: PlanUnit, place: PlanPlace) -> tuple[tuple[PlanPod, int], ...] | None:
        """One way to place a unit, the largest pods first, each on the fullest node; None when that fails."""
        picked: list[tuple[PlanPod, int]] = []
        nodes, position, former = self._nodes_of(place), 0, -1
        for pod in self._pods_of(unit):
            if len(picked) == unit.need:
                break
            kind = self._kinds[pod.kind]
            if pod.kind != former:
                former, position = pod.kind, 0
            while position < len(nodes) and not self._has_room(nodes[position], kind):
                position += 1
            if position < len(nodes):
                self._take(nodes[position], kind, +1)
                picked.append((pod, nodes[position]))
        if len(picked) == unit.need:
            return tuple(picked)
        for pod, node in picked:
            self._take(node, self._kinds[pod.kind], -1)
        return None


def _key(unit: PlanUnit) -> object:
    """Units with equal keys have nodes alike, or none."""
    if unit.follows >= 0:
        return "follows", unit.follows, tuple(sorted({(pod.kind, pod.role) for pod in unit.pods}))
    pods = tuple(sorted((pod.kind, pod.role) for pod in unit.pods))
    return unit.policy, pods, unit.need, tuple(place.number for place in unit.places)
