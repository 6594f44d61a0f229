"""Access by bearer tokens of the cluster: TokenReview names the user, SubjectAccessReview the namespaces."""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.kube.client import ApiError, Unreachable
from capcard_sched.web.access import VIEWER, DeniedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from aiohttp import web

    from capcard_sched.kube.client import Client

_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
#: Seconds for which a review is believed.
_BELIEVED: Final = 60.0
#: Viewers whose reviews are kept.
_MOST_KEPT: Final = 1000
#: Reviews of one viewer at a time.
_AT_ONCE: Final = 16


class TokenAccess:
    """Jobs of namespaces in which the user of the token may get pods. Sums of queues are visible to every user."""

    def __init__(self, client: Client, namespaces: Callable[[], Collection[str]]) -> None:
        """`namespaces`: those with jobs or pods now."""
        self._client, self._all = client, namespaces
        #: Digest of a token to the end of its belief, the user and what is known of namespaces.
        self._kept: dict[bytes, tuple[float, dict[str, Any], dict[str, bool]]] = {}

    async def namespaces(self, request: web.Request) -> frozenset[str] | None:
        """The namespaces of the viewer; None for all. Raises DeniedError."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise DeniedError(401, "expected a header Authorization: Bearer TOKEN, with a token of the cluster")
        try:
            user, known = await self._review(token.strip())
            request[VIEWER] = str(user.get("username") or "")
            if await self._may_see(user, known, ""):
                return None
            names = [name for name in self._all() if name]
            slots = asyncio.Semaphore(_AT_ONCE)

            async def check(name: str) -> bool:
                async with slots:
                    return await self._may_see(user, known, name)

            found = await asyncio.gather(*map(check, names))
        except (ApiError, Unreachable) as error:
            raise DeniedError(503, f"the token cannot be reviewed: {error}") from None
        return frozenset(name for name, is_allowed in zip(names, found, strict=True) if is_allowed)

    async def _review(self, token: str) -> tuple[dict[str, Any], dict[str, bool]]:
        """The user of a token, and what is known of namespaces. Raises DeniedError."""
        key, now = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest(), time.monotonic()
        kept = self._kept.get(key)
        if kept is not None and kept[0] > now:
            return kept[1], kept[2]
        status = await self._post(_REVIEWS, "authentication.k8s.io/v1", "TokenReview", {"token": token})
        if not status.get("authenticated"):
            raise DeniedError(401, "the token is not valid")
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        user, known = dict(status["user"]), dict[str, bool]()
        self._kept[key] = now + _BELIEVED, user, known
        return user, known

    async def _may_see(self, user: dict[str, Any], known: dict[str, bool], namespace: str) -> bool:
        """Whether a user may get pods of a namespace; "" for all."""
        if namespace not in known:
            attributes = {"verb": "get", "resource": "pods", "namespace": namespace}
            spec = {"user": user.get("username"), "resourceAttributes": attributes} | {
                name: user[name] for name in ("uid", "groups", "extra") if user.get(name)
            }
            status = await self._post(_ACCESS_REVIEWS, "authorization.k8s.io/v1", "SubjectAccessReview", spec)
            known[namespace] = bool(status.get("allowed"))
        return known[namespace]

    async def _post(self, path: str, version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        """The status of a review."""
        body = msgspec.json.encode({"apiVersion": version, "kind": kind, "spec": spec})
        response = msgspec.json.decode(await self._client.request("POST", path, body=body))
        return dict(response.get("status") or {})
