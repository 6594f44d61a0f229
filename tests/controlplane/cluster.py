"""A small client of the API server for tests: it makes objects, reads them, and waits for what should come of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import aiohttp
import yaml

from tests.clock import until
from tests.controlplane import deprecations
from tests.controlplane.connector import AbortingConnector
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest, Manifests, binding, granted, pod_group, queue

#: For `namespace`: all of them.
ALL: Final = "*"
_DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_RESTARTING: Final = 20.0  # seconds for which a request is tried again while the API server cannot be reached
_numbers = itertools.count(1)


class RequestError(Exception):
    """The API server answered with an error; `status` is its HTTP status."""

    def __init__(self, method: str, path: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{method} {path}: {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class Resource(NamedTuple):
    """Discovery data of one resource."""

    root: str  # `/api/v1`, `/apis/apps/v1`
    plural: str
    kind: str
    namespaced: bool
    verbs: frozenset[str] = frozenset()

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Path of the collection, of one object or of its subresource."""
        parts = [self.root]
        if self.namespaced and namespace != ALL:
            parts += ["namespaces", namespace]
        return "/".join([*parts, *filter(None, (self.plural, name, subresource))])


class Cluster:
    """The API server as one user sees it, with a namespace of its own to work in.

    Resources are named by plural or kind, like `pods` or `Pod`; where two groups have the same, as
    `jobs.batch.volcano.sh`. `namespace` is the client's own where a call gives none, `ALL` means every one; it is
    ignored for what has none. While the API server is away, requests are tried again for some seconds.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        *,
        user: str = "admin",
        namespace: str = "default",
        server: str = "",
        token: str = "",
    ) -> None:
        self.control_plane = control_plane
        self.namespace = namespace
        self._server = server or control_plane.server
        self._token = token or control_plane.token(user)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            self._server,
            connector=AbortingConnector(limit=0, ssl=self.control_plane.ssl),
            headers={"Authorization": f"Bearer {self._token}", "User-Agent": "tests"},
            timeout=aiohttp.ClientTimeout(total=30),
            trace_configs=[deprecations.tracing()],
        )
        return self

    async def __aexit__(self, _type: type[BaseException] | None, _value: object, _trace: TracebackType | None) -> None:
        await self.session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """The HTTP client, with the server as base and the token in its headers."""
        assert self._session is not None, "use the client as a context manager"
        return self._session

    # --- objects ------------------------------------------------------------------------------------------------------

    async def create(self, manifest: Manifest) -> Manifest:
        """Makes an object, in the client's namespace unless the manifest names one; returns it as stored."""
        return await self.request("POST", await self._path_of(manifest, collection=True), body=manifest)

    async def create_all(self, manifests: Iterable[Manifest], *, at_a_time: int = 16) -> Manifests:
        """Makes many objects, some at a time; returns them in order."""
        slots = asyncio.Semaphore(at_a_time)

        async def create(manifest: Manifest) -> Manifest:
            async with slots:
                return await self.create(manifest)

        return await asyncio.gather(*map(create, manifests))

    async def apply(self, source: Path | str | Manifest | Iterable[Manifest]) -> Manifests:
        """Server-side apply of a file, a folder of `*.yaml`, YAML text or manifests; returns what is stored."""
        params, kind = {"fieldManager": "tests", "force": "true"}, "application/apply-patch+yaml"
        return [
            await self.request("PATCH", await self._path_of(each), params=params, body=each, content_type=kind)
            for each in _manifests(source)
        ]

    async def rejection(self, manifest: Manifest, *, dry_run: bool = True) -> RequestError | None:
        """The error of a creation, None when it is accepted; it is a trial unless `dry_run` is False."""
        params = {"dryRun": "All"} if dry_run else {}
        try:
            await self.request("POST", await self._path_of(manifest, collection=True), params=params, body=manifest)
        except RequestError as error:
            return error
        return None

    async def get(self, kind: str, name: str, *, namespace: str = "", subresource: str = "") -> Manifest:
        """One object; RequestError with status 404 when there is none."""
        return await self.request("GET", await self.path(kind, name, namespace=namespace, subresource=subresource))

    async def find(self, kind: str, name: str, *, namespace: str = "") -> Manifest | None:
        """One object, or None."""
        try:
            return await self.get(kind, name, namespace=namespace)
        except RequestError as answer:
            if answer.status != 404:
                raise
            return None

    async def list(self, kind: str, *, namespace: str = "", **params: str) -> Manifests:
        """All objects of a kind, as they are now; `labelSelector` and the like go by their names of the API."""
        answer = await self.request("GET", await self.path(kind, namespace=namespace), params=params)
        items: Manifests = answer["items"]
        return items

    async def update(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        """Replaces an object, or its subresource."""
        return await self.request("PUT", await self._path_of(manifest, subresource), body=manifest)

    async def patch(
        self,
        kind: str,
        name: str,
        patch: Manifest,
        *,
        namespace: str = "",
        subresource: str = "",
        strategy: str = "merge",
    ) -> Manifest:
        """Patches an object; `strategy` is `merge`, `strategic-merge` or `json`."""
        path = await self.path(kind, name, namespace=namespace, subresource=subresource)
        return await self.request("PATCH", path, body=patch, content_type=f"application/{strategy}-patch+json")

    async def delete(self, kind: str, name: str, *, namespace: str = "", grace: int | None = 0) -> None:
        """Deletes an object at once, or after `grace` seconds (None: its own), where a kubelet must end the pod."""
        body: Manifest = {"propagationPolicy": "Background"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        await self.request("DELETE", await self.path(kind, name, namespace=namespace), body=body)

    async def bind(self, pod: str, node: str, *, namespace: str = "", uid: str = "") -> None:
        """Binds a pod to a node, as a scheduler does."""
        body = binding(pod, node, **({"uid": uid} if uid else {}))
        await self.request("POST", await self.path("pods", pod, namespace=namespace, subresource="binding"), body=body)

    async def bound(self, *, namespace: str = "") -> dict[str, str]:
        """Pod to node, of the pods that have one."""
        pods = await self.list("pods", namespace=namespace)
        return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}

    async def make_namespace(self, name: str = "") -> str:
        """Makes a namespace, of a name never used before unless it is given, and returns its name."""
        name = name or f"t{next(_numbers)}-{secrets.token_hex(3)}"
        await self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        return name

    async def allow(self, user: str, rules: Manifests, *, everywhere: bool = False) -> None:
        """Grants rules to a user, in all namespaces or in the client's; a later call replaces them."""
        await self.apply(granted(user, rules, everywhere=everywhere))

    async def token_of(self, service_account: str, *, namespace: str = "") -> str:
        """A token of a ServiceAccount, which must exist; good for an hour."""
        path = await self.path("serviceaccounts", service_account, namespace=namespace, subresource="token")
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        token: str = (await self.request("POST", path, body=body))["status"]["token"]
        return token

    async def wipe(self) -> None:
        """Deletes every object that was made since the CRDs were installed, and waits until no list shows one."""
        webhooks = [
            (kind, found["metadata"]["name"])
            for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
            for found in await self.list(kind)
        ]
        for kind, name in webhooks:
            await self.delete(kind, name)
        await asyncio.to_thread(self.control_plane.wipe)
        if webhooks:
            await self.wait_until(self._creates_queues, "the API server to drop the webhooks", within=60)
        # The server drops policies within seconds after they are gone, whether the test or the wipe deleted them.
        for is_free in (self._creates_queues, self._binds_pods, self._runs_groups):
            await self.wait_until(is_free, "the API server to drop the admission policies", within=60)
        for kind in ("nodes", "pods", "podgroups", "queues"):
            # A list of what is (not of what was: resourceVersion "0") waits for the server's cache to catch up.
            await self.list(kind, namespace=ALL, limit="1")

    async def _creates_queues(self) -> bool:
        """Whether queues are created without a webhook, and no policy denies it."""
        return await self.rejection(queue("no-webhook")) is None

    async def _binds_pods(self) -> bool:
        """Whether no policy denies the binding of a pod that does not exist."""
        try:
            await self.request("POST", "/api/v1/namespaces/default/pods/none/binding", body=binding("none", "none"))
        except RequestError as error:
            return error.status == 404
        return False

    async def _runs_groups(self) -> bool:
        """Whether no policy denies a PodGroup that begins in phase Running."""
        group = pod_group("no-policy", namespace="default")
        return await self.rejection({**group, "status": {"phase": "Running"}}) is None

    # --- waiting ------------------------------------------------------------------------------------------------------

    @staticmethod
    async def wait_until(check: Callable[[], Any], what: str, *, within: float = 60.0) -> Any:
        """See `until`."""
        return await until(check, what, within=within)

    async def watch(self, kind: str, *, namespace: str = ALL, **params: str) -> AsyncIterator[Manifest]:
        """The events of a watch as they come, until the server ends it; `resourceVersion` etc. as in the API."""
        path = await self.path(kind, namespace=namespace)
        no_end = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with self.session.get(path, params={"watch": "true", **params}, timeout=no_end) as answer:
            if answer.status != 200:
                raise _failure("WATCH", path, answer.status, await answer.read())
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def path(self, kind: str, name: str = "", *, namespace: str = "", subresource: str = "") -> str:
        """Path of a collection, an object or a subresource."""
        return (await self._resource(kind)).path(namespace or self.namespace, name, subresource)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Manifest:
        """One request, tried again while the API server cannot be reached; the answer, decoded.

        Raises:
            RequestError: the answer is an error.
        """
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode()  # as Go's clients
        headers = {"Content-Type": content_type, "Accept": accept}
        deadline = time.monotonic() + _RESTARTING
        while True:
            try:
                async with self.session.request(method, path, params=params, data=content, headers=headers) as answer:
                    text = await answer.read()
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError, ConnectionResetError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)
                continue
            if answer.status == 429 and b"(re)initializing" in text and time.monotonic() < deadline:
                await asyncio.sleep(0.1)  # the server's cache of a rarely requested resource
                continue
            if (
                answer.status >= 500
                and method != "POST"
                and b"code = Unavailable" in text
                and time.monotonic() < deadline
            ):
                await asyncio.sleep(0.1)  # etcd is restarting
                continue
            if answer.status >= 400:
                raise _failure(method, path, answer.status, text)
            decoded: Manifest = json.loads(text)
            return decoded

    async def _resource(self, kind: str) -> Resource:
        """The resource of that plural or kind, with or without its group."""
        for fresh in (False, True):
            found = (await self._resources(fresh=fresh)).get(kind.lower())
            if found is not None:
                return found
        raise AssertionError(f"the API server has no resource {kind!r}")

    async def _path_of(self, manifest: Manifest, subresource: str = "", *, collection: bool = False) -> str:
        """Path of a manifest's object, in the client's namespace unless it names one, or of its collection."""
        group, _, _ = str(manifest["apiVersion"]).rpartition("/")
        resource = await self._resource(f"{manifest['kind']}.{group}" if group else manifest["kind"])
        meta = manifest["metadata"]
        return resource.path(meta.get("namespace") or self.namespace, "" if collection else meta["name"], subresource)

    async def _resources(self, *, fresh: bool) -> dict[str, Resource]:
        """Every name to its resource; read once per control plane and again when a name is missing."""
        memo = self.control_plane.memo
        if fresh or "resources" not in memo:
            found: dict[str, Resource] = {}
            for root in ("/api", "/apis"):
                for group in (await self.request("GET", root, accept=_DISCOVERY))["items"]:
                    _add_group(found, root, group)
            memo["resources"] = found
        resources: dict[str, Resource] = memo["resources"]
        return resources


def _add_group(found: dict[str, Resource], root: str, group: Manifest) -> None:
    """One group of the discovery document; its first version is the preferred one, and the first group keeps a name."""
    name = group.get("metadata", {}).get("name", "")
    for version in group.get("versions", []):
        for row in version.get("resources", []):
            path = "/".join(filter(None, (root, name, version["version"])))
            kind = row["responseKind"]["kind"]
            resource = Resource(path, row["resource"], kind, row["scope"] == "Namespaced", frozenset(row["verbs"]))
            for word in (row["resource"], kind.lower()):
                found.setdefault(word, resource)
                found.setdefault(f"{word}.{name}", resource)


def _manifests(source: Path | str | Manifest | Iterable[Manifest]) -> Manifests:
    if isinstance(source, dict):
        return [source]
    if isinstance(source, Path):
        files = sorted(source.glob("*.yaml")) if source.is_dir() else [source]
        return [manifest for file in files for manifest in _manifests(file.read_text("utf-8"))]
    if isinstance(source, str):
        return [document for document in yaml.load_all(source, yaml.CSafeLoader) if document]  # safe, and in C
    return list(source)


def _failure(method: str, path: str, status: int, text: bytes) -> RequestError:
    try:
        answer = json.loads(text)
    except ValueError:
        return RequestError(method, path, status, "", text.decode("utf-8", "replace"))
    return RequestError(method, path, status, answer.get("reason", ""), answer.get("message", ""))
