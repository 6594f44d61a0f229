"""What changed since the last session opened."""

from __future__ import annotations


class Dirty:
    """Names of what changed. One object lives as long as the state and collects; each session takes what is there."""

    __slots__ = ("everything", "jobs", "nodes", "queues", "recount", "volumes")

    def __init__(self, *, everything: bool = False) -> None:
        self.everything = everything
        #: The next session is to look at everything, whenever there is one; no reason to open it.
        self.recount = False
        self.jobs: set[str] = set()
        self.queues: set[str] = set()
        self.nodes: set[str] = set()
        #: Keys of claims, and kind and name of other storage objects.
        self.volumes: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.everything or self.jobs or self.queues or self.nodes or self.volumes)

    def take(self) -> Dirty:
        """Hand over what was collected, and start collecting anew."""
        taken = Dirty(everything=self.everything or self.recount)
        taken.jobs, taken.queues, taken.nodes, taken.volumes = self.jobs, self.queues, self.nodes, self.volumes
        self.everything = self.recount = False
        self.jobs, self.queues, self.nodes, self.volumes = set(), set(), set(), set()
        return taken
