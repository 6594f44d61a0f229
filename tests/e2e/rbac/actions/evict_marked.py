"""An action for tests: pods with the label `test/evict` are taken back."""

from __future__ import annotations

from capcard_sched.framework.session.action import Action
from capcard_sched.framework.session.session import Session
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.status import TaskStatus


class EvictMarked(Action):
    """Evicts what runs and is marked, one statement each."""

    name = "evict-marked"

    def execute(self, session: Session) -> None:
        """Run the action."""
        for task in list(session.snapshot.tasks_by_uid.values()):
            if "test/evict" in task.labels and task.status is TaskStatus.RUNNING and task.job is not None:
                statement = Statement(session)
                statement.evict(task, "the test")
                statement.commit()
