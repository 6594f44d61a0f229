"""The queues that must exist before anything can be scheduled (core reference §5.9)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.paths import QUEUES

if TYPE_CHECKING:
    from collections.abc import Callable

_ROOT: Final = "root"
_CONFLICT: Final = 409
_ATTEMPT_SECONDS: Final = 1.0


async def ensure_queues(
    client: Client, default_queue: str, failed: Callable[[str, str], None], attempts: int = 60
) -> None:
    """Create `root` and the default queue where they are missing; one that exists stays as it is.

    `failed` is told of each queue that could not be created after `attempts` tries a second apart, and why.
    """
    for name, reclaimable in ((_ROOT, False), (default_queue, True)):
        body = msgspec.json.encode(
            {
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "Queue",
                "metadata": {"name": name},
                "spec": {"weight": 1, "reclaimable": reclaimable},
            }
        )
        problem = ""
        for _ in range(attempts):
            try:
                await client.request("POST", QUEUES, body=body)
            except ApiError as error:
                if error.status == _CONFLICT:
                    break
                problem = error.message
            except Unreachable as error:
                problem = str(error)
            else:
                break
            await asyncio.sleep(_ATTEMPT_SECONDS)
        else:
            failed(name, problem)
