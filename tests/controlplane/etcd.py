"""Requests of tests to etcd itself, through its API in JSON."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

#: Operations that etcd takes in one transaction.
_AT_ONCE: Final = 128


class Etcd:
    """A client of one etcd on loopback; no connection is kept."""

    def __init__(self, port: int) -> None:
        self._port = port

    def answers(self) -> bool:
        """Whether it is there and well."""
        return self._call("maintenance/status", {}) is not None

    def revision(self) -> int:
        """Revision of the store."""
        answer = self._must("kv/range", {"key": _code("/"), "limit": "1", "keys_only": True})
        return int(answer["header"]["revision"])

    def compact(self, revision: int) -> None:
        """Forgets what was before that revision."""
        self._must("kv/compaction", {"revision": str(revision), "physical": True})

    def object_keys(self) -> list[str]:
        """Keys of all objects."""
        prefix = {"key": _code("/registry/"), "range_end": _code("/registry0"), "keys_only": True}
        return [base64.b64decode(row["key"]).decode() for row in self._must("kv/range", prefix).get("kvs", [])]

    def objects(self, prefix: str) -> dict[str, bytes]:
        """Key to stored bytes of the objects whose key begins with `/registry/` and the prefix."""
        first = f"/registry/{prefix}"
        found = self._must("kv/range", {"key": _code(first), "range_end": _code(first[:-1] + chr(ord(first[-1]) + 1))})
        return {base64.b64decode(row["key"]).decode(): base64.b64decode(row["value"]) for row in found.get("kvs", [])}

    def put(self, objects: Mapping[str, bytes]) -> None:
        """Store objects as they are."""
        rows = [
            {"request_put": {"key": _code(key), "value": base64.b64encode(value).decode()}}
            for key, value in objects.items()
        ]
        for first in range(0, len(rows), _AT_ONCE):
            self._must("kv/txn", {"success": rows[first : first + _AT_ONCE]})

    def delete(self, keys: Sequence[str]) -> None:
        """Deletes objects."""
        for first in range(0, len(keys), _AT_ONCE):
            deletes = [{"request_delete_range": {"key": _code(key)}} for key in keys[first : first + _AT_ONCE]]
            self._must("kv/txn", {"success": deletes})

    def _must(self, method: str, body: Mapping[str, Any]) -> Any:
        answer = self._call(method, body)
        assert answer is not None, f"etcd does not do {method}"
        return answer

    def _call(self, method: str, body: Mapping[str, Any]) -> Any:
        """The answer, or None when there is none or not one of success."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request("POST", f"/v3/{method}", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return json.loads(content) if answer.status == http.client.OK else None


def _code(key: str) -> str:
    return base64.b64encode(key.encode()).decode()
