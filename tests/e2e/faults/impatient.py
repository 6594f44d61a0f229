"""`capcard-sched` with less patience than its users need, so that tests need not wait for it.

As a program: impatient.py SECONDS-FOR-A-REQUEST SECONDS-OF-SILENCE-ON-A-WATCH run …
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from capcard_sched.cli.main import main
from capcard_sched.daemon import wiring
from capcard_sched.kube.client import Client
from capcard_sched.kube.decode import WatchSettings
from capcard_sched.kube.informers import Informers
from tests.controlplane.proxy import Proxy
from tests.e2e.daemons import CARD_CONF, Daemon


def impatient(proxy: Proxy, folder: Path, *flags: str, timeout: float = 3.0, silence: float = 90.0) -> Daemon:
    """A daemon that waits `timeout` seconds for an answer, and `silence` seconds for something to come on a watch."""
    daemon = Daemon(proxy.kubeconfig_for("scheduler-a"), folder, *flags, conf=CARD_CONF)
    daemon.command[:1] = [sys.executable, __file__, str(timeout), str(silence)]
    return daemon


if __name__ == "__main__":
    request, watch = map(float, sys.argv[1:3])
    del sys.argv[1:3]
    vars(wiring)["Client"] = functools.partial(Client, timeout=request)
    vars(wiring)["Informers"] = functools.partial(Informers, settings=WatchSettings(silence=watch))
    main()
