"""The audit log of an API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

POLICY: Final = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - {level: None, nonResourceURLs: ["/*"]}
  - {level: Metadata}
"""


class Audited(NamedTuple):
    """One request in the audit log, in the words of RBAC; `code` is the HTTP status."""

    user: str
    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    #: Of the authorizer: `allow` or `forbid`.
    decision: str = ""


def read(log: Path, since: int) -> Iterator[Audited]:
    """The requests after that length of the log, oldest first; the server's own (`system:apiserver`) are among them.

    A watch is in it once, from its beginning on. Lines are written as requests are answered: a request that was
    answered this instant may still be missing.
    """
    with log.open("rb") as lines:
        lines.seek(since)
        for line in lines:
            if not line.endswith(b"\n"):
                return
            event = json.loads(line)
            if "objectRef" not in event or (event["verb"] == "watch" and event["stage"] == "ResponseComplete"):
                continue
            about = event["objectRef"]
            yield Audited(
                event["user"].get("username", ""),
                event["verb"],
                about.get("apiGroup", ""),
                about.get("resource", ""),
                about.get("subresource", ""),
                about.get("namespace", ""),
                about.get("name", ""),
                event.get("responseStatus", {}).get("code", 0),
                event.get("annotations", {}).get("authorization.k8s.io/decision", ""),
            )
