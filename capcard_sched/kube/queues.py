"""Creation of the `root` queue and the default queue, without which no job can be scheduled."""

from __future__ import annotations

import asyncio
import math
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.kube.client import Client, RequestError, RequestWithheld
from capcard_sched.kube.paths import collection_path
from capcard_sched.model.queue import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds between two attempts: doubling.
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0


async def ensure_queues(
    client: Client, default_queue: str, on_failure: Callable[[str, str], None], wanted: Callable[[], bool]
) -> None:
    """Create `root` and the default queue where they are missing; an existing one is unchanged.

    Retries while `wanted` returns True. `on_failure(queue, error)` is called once per distinct error.
    """
    async with asyncio.TaskGroup() as group:
        for name, reclaimable in ((ROOT, False), (default_queue, True)):
            group.create_task(_ensure(client, name, on_failure, wanted, reclaimable=reclaimable))


async def _ensure(
    client: Client, name: str, on_failure: Callable[[str, str], None], wanted: Callable[[], bool], *, reclaimable: bool
) -> None:
    body = msgspec.json.encode(
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": {"weight": 1, "reclaimable": reclaimable},
        }
    )
    reported, pause = "", _FIRST_PAUSE
    while wanted():
        try:
            await client.request(
                "POST", collection_path("Queue"), body=body, time_left=lambda: math.inf if wanted() else 0.0
            )
        except RequestError as error:
            if error.status == HTTPStatus.CONFLICT:
                return
            error_text = error.text
        except RequestWithheld:
            continue
        else:
            return
        if error_text != reported:
            on_failure(name, error_text)
            reported = error_text
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
