"""`capcard-sched` with less patience than its users need, so that tests need not wait: python impatient.py run …

Seconds: `$IMPATIENT_TIMEOUT` for a request, `$IMPATIENT_SILENCE` for a watch without a byte.
"""

from __future__ import annotations

import functools
import os

from capcard_sched.cli.main import main
from capcard_sched.daemon import service
from capcard_sched.kube.client import Client
from capcard_sched.kube.feed import Feed
from capcard_sched.kube.reflector import WatchSettings

if __name__ == "__main__":
    timeout = float(os.environ["IMPATIENT_TIMEOUT"])
    settings = WatchSettings(silence=float(os.environ["IMPATIENT_SILENCE"]))
    vars(service)["Client"] = functools.partial(Client, timeout=timeout)
    vars(service)["Feed"] = functools.partial(Feed, settings=settings)
    main()
