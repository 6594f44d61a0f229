"""The queues that must exist before anything can be scheduled (core reference §5.9)."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.kube.client import ApiError, Client, RequestWithheld, Unreachable
from capcard_sched.kube.paths import QUEUES

if TYPE_CHECKING:
    from collections.abc import Callable

_ROOT: Final = "root"
#: Between two attempts, in seconds: doubling.
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0


async def ensure_queues(
    client: Client, default_queue: str, failed: Callable[[str, str], None], wanted: Callable[[], bool]
) -> None:
    """Create `root` and the default queue where they are missing; one that exists stays as it is.

    What fails is tried again for as long as it is `wanted`. `failed` is told of each queue that could not be created,
    and why, when that is news.
    """
    async with asyncio.TaskGroup() as group:
        for name, reclaimable in ((_ROOT, False), (default_queue, True)):
            group.create_task(_ensure(client, name, failed, wanted, reclaimable=reclaimable))


async def _ensure(
    client: Client, name: str, failed: Callable[[str, str], None], wanted: Callable[[], bool], *, reclaimable: bool
) -> None:
    body = msgspec.json.encode(
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": {"weight": 1, "reclaimable": reclaimable},
        }
    )
    told, pause = "", _FIRST_PAUSE
    while wanted():
        try:
            await client.request("POST", QUEUES, body=body, clear=wanted)
        except ApiError as error:
            if error.status == HTTPStatus.CONFLICT:
                return
            why = error.message
        except Unreachable as error:
            why = str(error)
        except RequestWithheld:
            continue
        else:
            return
        if why != told:
            failed(name, why)
            told = why
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
