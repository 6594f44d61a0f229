"""Access by users of the cluster: SubjectAccessReview names the namespaces of a user that a token or a proxy names."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.kube.client import ApiError, Unreachable
from capcard_sched.web.access import VIEWER, DeniedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from aiohttp import web

    from capcard_sched.kube.client import Client

_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
#: Header in which a proxy proves itself.
PROOF_HEADER: Final = "X-Capcard-Proxy-Secret"
#: Characters of a secret at least: it is compared on every request of every client.
LEAST_SECRET: Final = 32
#: The group of every user that an API server has authenticated.
_AUTHENTICATED: Final = "system:authenticated"
#: Prefix of the users and groups of Kubernetes itself; no proxy names one.
_RESERVED: Final = "system:"
_SERVICE_ACCOUNT: Final = re.compile(r"(system:serviceaccount:[^:]+):[^:]+")
#: Seconds for which a review is believed.
_BELIEVED: Final = 60.0
#: Viewers whose reviews are kept.
_MOST_KEPT: Final = 1000
#: Reviews of one viewer at a time.
_AT_ONCE: Final = 16


class ReviewedAccess(ABC):
    """Jobs of namespaces in which the user of a request may get pods. Sums of queues are visible to every user."""

    def __init__(self, client: Client, namespaces: Callable[[], Collection[str]]) -> None:
        """`namespaces`: those with jobs or pods now."""
        self._client, self._all = client, namespaces
        #: Key of a viewer to the end of its belief, the user and what is known of namespaces.
        self._kept: dict[bytes, tuple[float, dict[str, Any], dict[str, bool]]] = {}

    @abstractmethod
    async def _viewer(self, request: web.Request) -> tuple[dict[str, Any], dict[str, bool]]:
        """The user of a request as in a TokenReview, and what is known of namespaces. Raises DeniedError."""

    async def namespaces(self, request: web.Request) -> frozenset[str] | None:
        """The namespaces of the viewer; None for all. Raises DeniedError."""
        try:
            user, known = await self._viewer(request)
            request[VIEWER] = viewer_of(str(user.get("username") or ""))
            if await self._may_see(user, known, ""):
                return None
            names = [name for name in self._all() if name]
            slots = asyncio.Semaphore(_AT_ONCE)

            async def check(name: str) -> bool:
                async with slots:
                    return await self._may_see(user, known, name)

            found = await asyncio.gather(*map(check, names))
        except (ApiError, Unreachable) as error:
            raise DeniedError(503, f"the user cannot be reviewed: {error}") from None
        return frozenset(name for name, is_allowed in zip(names, found, strict=True) if is_allowed)

    def _believed(self, key: bytes) -> tuple[dict[str, Any], dict[str, bool]] | None:
        """The user of a key and what is known of namespaces; None for a key that is unknown or expired."""
        kept = self._kept.get(key)
        return kept[1:] if kept is not None and kept[0] > time.monotonic() else None

    def _keep(self, key: bytes, user: dict[str, Any]) -> tuple[dict[str, Any], dict[str, bool]]:
        """Believe the user of a key from now on."""
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        known = dict[str, bool]()
        self._kept[key] = time.monotonic() + _BELIEVED, user, known
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


class TokenAccess(ReviewedAccess):
    """A bearer token of the cluster; TokenReview names its user."""

    async def _viewer(self, request: web.Request) -> tuple[dict[str, Any], dict[str, bool]]:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise DeniedError(401, "expected a header Authorization: Bearer TOKEN, with a token of the cluster")
        key = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        believed = self._believed(key)
        if believed is not None:
            return believed
        status = await self._post(_REVIEWS, "authentication.k8s.io/v1", "TokenReview", {"token": token.strip()})
        if not status.get("authenticated"):
            raise DeniedError(401, "the token is not valid")
        return self._keep(key, dict(status["user"]))


class ProxyAccess(ReviewedAccess):
    """The user that an authenticating proxy names in a header; a shared secret proves that a request is the proxy's.

    The secret is read from its file with each request, so that a Secret can be rotated.
    """

    def __init__(
        self, client: Client, namespaces: Callable[[], Collection[str]], header: str, groups: str, secret: Path
    ) -> None:
        """`header`, `groups`: header of the user, and of groups ("" for none). `secret`: file with the secret."""
        super().__init__(client, namespaces)
        self._header, self._groups, self._secret = header, groups, secret

    async def _viewer(self, request: web.Request) -> tuple[dict[str, Any], dict[str, bool]]:
        try:
            secret = read_secret(self._secret)
        except (OSError, ValueError) as error:
            raise DeniedError(503, f"the secret of the proxy cannot be read: {error}") from None
        given = request.headers.getall(PROOF_HEADER, [])
        if len(given) != 1 or not hmac.compare_digest(given[0].encode("utf-8", "surrogateescape"), secret):
            raise DeniedError(401, "expected a request of the proxy, with its secret")
        users = request.headers.getall(self._header, [])
        if len(users) != 1 or not users[0].strip():
            raise DeniedError(401, f"expected one header {self._header} with the name of the user")
        user, groups = users[0].strip(), [] if not self._groups else request.headers.getall(self._groups, [])
        groups = [name.strip() for line in groups for name in line.split(",") if name.strip()]
        for name in (user, *groups):
            if name.startswith(_RESERVED):
                raise DeniedError(403, f"{name}: names that begin with {_RESERVED} are not accepted from a proxy")
            if not name.isprintable():
                raise DeniedError(403, f"{name!r}: names with control characters are not accepted")
        key = hashlib.sha256("\0".join((user, *groups)).encode()).digest()
        found = {"username": user, "groups": [*groups, _AUTHENTICATED]}
        return self._believed(key) or self._keep(key, found)


def viewer_of(user: str) -> str:
    """The viewer whose requests are limited: the accounts of a namespace are one, its owner creates any number."""
    found = _SERVICE_ACCOUNT.fullmatch(user)
    return user if found is None else found[1]


def read_secret(file: Path) -> bytes:
    """The secret in a file, without the space around it. Raises OSError, and ValueError for a short one."""
    found = file.read_bytes().strip()
    if len(found) < LEAST_SECRET:
        raise ValueError(f"{file}: {len(found)} characters; expected at least {LEAST_SECRET}")
    return found
