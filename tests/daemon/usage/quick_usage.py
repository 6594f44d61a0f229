"""`capcard-sched` with averages of node usage at a shorter step: quick_usage.py STEP run ..."""

from __future__ import annotations

import functools
import sys

from capcard_sched.cli.main import main
from capcard_sched.daemon import service
from capcard_sched.daemon.usage_source import UsageSource

if __name__ == "__main__":
    vars(service)["UsageSource"] = functools.partial(UsageSource, step=sys.argv.pop(1))
    main()
