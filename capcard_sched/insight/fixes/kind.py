"""The base of the kinds of changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation
    from capcard_sched.insight.trials.change import Candidate, ProposedChange
    from capcard_sched.model.job import Job


class FixKind:
    """One kind of change. A subclass in a module of `kinds` is all that a new kind needs."""

    #: The order in which candidates are tried: the least disruptive first.
    disruption: ClassVar[int] = 2
    #: A fix has one change of the kind at most: it sets a field of the job.
    is_single: ClassVar[bool] = False
    #: It changes the job that is to start.
    is_of_job: ClassVar[bool] = False
    #: It makes the gang smaller: such fixes come last.
    is_of_gang: ClassVar[bool] = False
    #: It changes the scheduler-conf.
    is_of_conf: ClassVar[bool] = False
    #: The change in words, its value now and afterwards ("" for none): with the fields of a change (`key`, `value`,
    #: `present`, `replaces`), `more`, the `name` of its object, the `job`, its `queue` and its `priority`.
    words: ClassVar[str] = ""
    before: ClassVar[str] = ""
    after: ClassVar[str] = ""

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """Sets of changes, begun by this kind, that may remove what keeps the job from starting."""
        del situation
        return iter(())

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        """Make the change on the objects of a scene. Raises UnknownObjectError."""
        raise NotImplementedError

    def text(self, change: ProposedChange, scene: Scene) -> str:
        """The change in words, for the objects before it."""
        return self._filled(self.words, change, scene)

    def values(self, change: ProposedChange, scene: Scene) -> tuple[str, str]:
        """The value now and afterwards."""
        return self._filled(self.before, change, scene), self._filled(self.after, change, scene)

    def cost(self, change: ProposedChange, job: Job) -> str:
        """What the change costs the job itself, "" for nothing."""
        del change, job
        return ""

    @staticmethod
    def _filled(words: str, change: ProposedChange, scene: Scene) -> str:
        fields = {name: getattr(change, name) for name in ("key", "value", "present", "replaces")}
        own = {"job": scene.name, "queue": scene.job.queue.removeprefix("/"), "priority": scene.job.priority_class_name}
        return words.format(**fields, **own, name=change.target[2], more=change.value - change.present)
