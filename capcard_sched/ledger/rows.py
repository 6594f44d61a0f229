"""Rows of the ledger, as the recorder makes them. Field names are the columns of `schema`.

Moments are Unix milliseconds, None for what has not happened. A row has the same key and values however often its
source is read: writing it again changes nothing.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeVar

import msgspec

#: Bytes of a stored text. PostgreSQL limits an entry of an index to 2,704: the longest one has three texts of users.
_TEXT_BYTES: Final = 768


class JobRecord(msgspec.Struct):
    """One life of a job: from its submission, or from the restart of its pods, until no pod is left."""

    #: uid of the PodGroup; of the pod, for a pod without one.
    uid: str
    #: Lives are counted from 1.
    life: int
    namespace: str
    name: str
    #: `vcjob`, `deployment`, `pod`, ..., or `podgroup`.
    kind: str
    #: `Kind/name` of the controlling owner, "" without one.
    owner: str = ""
    queue: str = ""
    user_label: str = ""
    service_type: str = ""
    priority: int = 0
    min_member: int = 1
    #: The card of its first pod with cards, "" before.
    card: str = ""
    submitted: int = 0
    admitted: int | None = None
    #: The first pod was bound.
    first_scheduled: int | None = None
    #: The minimum was bound.
    whole: int | None = None
    ended: int | None = None
    #: Completed, Failed, Evicted, Deleted, Lost; "" while it lasts.
    outcome: str = ""
    #: Some moment fell into a gap of the records and is not known.
    gap: bool = False


class StageRow(msgspec.Struct):
    """A job was in one stage from `began` to `ended`."""

    uid: str
    life: int
    began: int
    stage: str
    ended: int | None = None


class ChargeRow(msgspec.Struct):
    """One pod held one card from its binding until it finished or was gone."""

    pod_uid: str
    pod: str
    namespace: str
    job_uid: str
    life: int
    queue: str
    user_label: str
    service_type: str
    card: str
    #: Of the card, without devices that the ledger cannot count; `uncounted` of part 0 names them.
    thousandths: int
    node: str
    began: int
    ended: int | None = None
    #: Completed, Failed, Evicted, Deleted, Lost; "" while it lasts.
    end_reason: str = ""
    #: Why the scheduler evicted the pod: action, preemptor and amount.
    preemptor: str = ""
    uncounted: str = ""
    #: Of the pod, at the last change of this row.
    resource_version: str = ""
    #: Beginning or end fell into a gap of the records and is not known.
    gap: bool = False
    #: 0: the card of which the pod has most; 1 and more: its further cards.
    part: int = 0


class CapacityRow(msgspec.Struct):
    """Thousandths of a card in the cluster from a moment on."""

    card: str
    at: int
    total: int
    #: The part on nodes that are cordoned or not ready.
    unavailable: int


class QuotaRecord(msgspec.Struct):
    """The quota of a queue for a card from a moment on."""

    queue: str
    card: str
    at: int
    #: None: none from here on.
    thousandths: int | None
    #: The parent queue, "" for none.
    parent: str = ""


Row: TypeAlias = JobRecord | StageRow | ChargeRow | CapacityRow | QuotaRecord
_AnyRow = TypeVar("_AnyRow", bound=Row)


def storable(row: _AnyRow) -> _AnyRow:
    """The row with texts that every database stores: a NUL is replaced, and a long text ends with `…`."""
    changed = {
        name: _storable_text(value)
        for name in row.__struct_fields__
        if isinstance(value := getattr(row, name), str) and (len(value) > _TEXT_BYTES // 4 or "\0" in value)
    }
    return msgspec.structs.replace(row, **changed) if changed else row


def _storable_text(text: str) -> str:
    text = text.replace("\0", "\ufffd")
    if len(text) <= _TEXT_BYTES and len(text.encode()) <= _TEXT_BYTES:
        return text
    return text[:_TEXT_BYTES].encode()[: _TEXT_BYTES - len("…".encode())].decode(errors="ignore") + "…"
