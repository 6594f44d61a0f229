"""Statuses of tasks, phases of jobs, answers to votes: the closed sets of words (core reference §2.3, §2.8, §3.2)."""

from enum import IntEnum, StrEnum


class TaskStatus(IntEnum):
    """Where a pod stands, as the scheduler sees it. The values index `Job.counts`."""

    PENDING = 0
    ALLOCATED = 1  # session only: placed by a statement that is not committed yet
    PIPELINED = 2  # session only: placed on room that is still being released
    BINDING = 3  # committed; the watch has not shown the node name yet
    BOUND = 4
    RUNNING = 5
    RELEASING = 6  # deleted or evicted, still on its node
    SUCCEEDED = 7
    FAILED = 8
    UNKNOWN = 9

    @property
    def title(self) -> str:
        """The word used in messages: `Pending`, `Running`, ..."""
        return self.name.capitalize()


#: Count towards the allocated totals of jobs and queues.
ALLOCATED_STATUSES = frozenset({TaskStatus.BOUND, TaskStatus.BINDING, TaskStatus.RUNNING, TaskStatus.ALLOCATED})
#: Hold room on their node.
PLACED_STATUSES = ALLOCATED_STATUSES | {TaskStatus.RELEASING, TaskStatus.UNKNOWN}
#: Ended for good; hold nothing.
COMPLETED_STATUSES = frozenset({TaskStatus.SUCCEEDED, TaskStatus.FAILED})
#: Count as scheduled for the phase of a PodGroup.
SCHEDULED_STATUSES = frozenset({TaskStatus.RUNNING, TaskStatus.BOUND, TaskStatus.FAILED, TaskStatus.SUCCEEDED})


class PodGroupPhase(StrEnum):
    """`PodGroup.status.phase`; an empty phase reads as PENDING."""

    PENDING = "Pending"
    INQUEUE = "Inqueue"
    RUNNING = "Running"
    UNKNOWN = "Unknown"
    COMPLETED = "Completed"


class Vote(IntEnum):
    """A plugin's answer where several plugins decide together."""

    REJECT = -1
    ABSTAIN = 0
    PERMIT = 1
