"""A replica in a process of its own: `replica.py KUBECONFIG NAMESPACE IDENTITY LOG`.

A thread polls `is_leader` and writes a line per poll, `<seconds> <0 or 1> <events since the last line>`; seconds are
of a clock that all processes of the machine share. SIGTERM: releases and ends.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from pathlib import Path

from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.election import Election
from tests.kube.election.electors import LEASE, QUICK


def watch(election: Election, changes: list[bool], log: Path) -> None:
    seen = 0
    with log.open("w", buffering=1, encoding="utf-8") as lines:
        while True:
            leads = election.is_leader()  # read before the time is taken: a stop in between makes us look worse
            now = time.monotonic()
            new_changes, seen = changes[seen:], len(changes)
            lines.write(f"{now:.4f} {int(leads)} {' '.join(map(str, new_changes))}\n")
            time.sleep(0.003)


async def main(kubeconfig: str, namespace: str, identity: str, log: str) -> None:
    changes: list[bool] = []
    async with Client(load_connection(kubeconfig), connections=2) as client:
        election = Election(
            client, namespace=namespace, name=LEASE, identity=identity, on_change=changes.append, **QUICK
        )
        threading.Thread(target=watch, args=(election, changes, Path(log)), daemon=True).start()
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        running = asyncio.create_task(election.run())
        await ended.wait()
        await election.release()
        await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
