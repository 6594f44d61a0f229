"""Address and credentials of the API server: kubeconfigs, credential plugins, service accounts; the way by a proxy."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json
import shutil
import ssl
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import Connection, ConnectionConfigError, in_cluster, load_connection, ssl_context
from capcard_sched.kube.errors import ApiError, Unreachable
from capcard_sched.kube.plain_credentials import plain_kubeconfig
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import node, plain

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)


def kubeconfig(path: Path, *, cluster: dict[str, Any], user: dict[str, Any], **context: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", **context}},
            {"name": "there", "context": {"cluster": "c", "user": "u", "namespace": "elsewhere"}},
        ],
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


PLAIN: dict[str, Any] = {"server": "http://127.0.0.1:8080/"}


def load(path: Path, user: dict[str, Any], cluster: dict[str, Any] = PLAIN, **more: str) -> Connection:
    """The connection of a kubeconfig with this user and cluster; `more`: of `load_connection`."""
    return load_connection(str(kubeconfig(path / "k", cluster=cluster, user=user)), **more)


def test_server_namespace_and_credentials_come_from_the_current_context(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", cluster=PLAIN, user={"token": "abc"}, namespace="team")
    connection = load_connection(str(path))
    assert (connection.server, connection.ssl, connection.namespace) == ("http://127.0.0.1:8080", None, "team")
    assert connection.token() == "abc"
    assert load_connection(str(path), context="there").namespace == "elsewhere"
    assert load(tmp_path, {"username": "me", "password": "secret"}).token() == "Basic bWU6c2VjcmV0"


def test_a_flag_precedes_a_variable_of_several_files_and_both_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def named(name: str, where: str) -> str:
        return str(kubeconfig(tmp_path / where, cluster=PLAIN, user={"token": name}))

    named("home", "home/.kube/config")
    assert load_connection().token() == "home"
    monkeypatch.setenv("KUBECONFIG", f"{named('variable', 'a')}:{tmp_path / 'absent'}")
    assert load_connection().token() == "variable"
    assert load_connection(named("flag", "b")).token() == "flag"


def test_master_replaces_the_server_and_may_stand_alone(tmp_path: Path) -> None:
    both = load(tmp_path, {"token": "abc"}, master="https://10.0.0.1:6443/")
    assert (both.server, both.token()) == ("https://10.0.0.1:6443", "abc")
    assert both.ssl is not None
    alone = load_connection(master="http://127.0.0.1:1")
    assert (alone.server, alone.token(), alone.namespace, alone.ssl) == ("http://127.0.0.1:1", None, "default", None)


def test_proxy_and_name_of_the_certificate_are_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://from-the-environment:3128")
    cluster = {"server": "https://h:1", "tls-server-name": "name", "insecure-skip-tls-verify": True}
    connection = load(tmp_path, {}, cluster)
    assert (connection.proxy, connection.server_name) == (None, "name")
    assert connection.ssl is not None
    assert connection.ssl.verify_mode is ssl.CERT_NONE
    assert load(tmp_path, {}, {**cluster, "proxy-url": "http://proxy:3128"}).proxy == "http://proxy:3128"


def test_a_token_file_is_read_again_on_renewal(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n", encoding="utf-8")
    connection = load(tmp_path, {"tokenFile": str(file)})
    assert connection.token() == "first"
    file.write_text("second\n", encoding="utf-8")
    connection.renew()
    assert connection.token() == "second"


def plugin(tmp_path: Path, body: str) -> dict[str, Any]:
    script = tmp_path / "plugin"
    script.write_text(f"#!{sys.executable}\nimport json, pathlib, sys\n{body}\n", encoding="utf-8")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": str(script), "interactiveMode": "Never"}}


COUNTING = """
count = pathlib.Path(__file__).with_name("count")
count.write_text(count.read_text() + "x" if count.exists() else "x")
status = {"token": f"token-{len(count.read_text())}", "expirationTimestamp": "%s"}
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
"""


@pytest.mark.parametrize("expires, again", [("2100-01-01T00:00:00Z", False), ("2001-01-01T00:00:00Z", True)])
def test_a_credential_plugin_runs_again_when_its_token_has_expired(tmp_path: Path, expires: str, again: bool) -> None:
    connection = load(tmp_path, plugin(tmp_path, COUNTING % expires))
    first = connection.token()
    assert first is not None
    assert (connection.token() != first) is again
    connection.renew()
    assert connection.token() != first


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "k"),
        ("{", "k"),
        ("[]", "k"),
        ("just words", "k: not a kubeconfig; accepted: a YAML document with clusters"),
        ("apiVersion: v1\nkind: Config\n", "k"),
        ("apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts: []\nclusters: []\nusers: []\n", "x"),
    ],
)
def test_a_kubeconfig_that_is_none_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "k"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConnectionConfigError, match=f"kubeconfig .*{message}"):
        load_connection(str(path))


HTTPS = {"server": "https://h:1"}


@pytest.mark.parametrize(
    ("user", "cluster", "more", "problem"),
    [
        ({}, PLAIN, {"context": "nirvana"}, "nirvana"),
        ({}, PLAIN, {"master": "localhost:1"}, "'localhost:1' is not an address; accepted: http://host:port"),
        ({}, {}, {}, "is not an address"),
        ({}, {**HTTPS, "certificate-authority": "absent.crt"}, {}, r"absent\.crt"),
        ({}, {**HTTPS, "proxy-url": "socks5://p:1"}, {}, "'socks5://p:1' is not supported; accepted: http:"),
        ("sys.exit('no credentials today')", PLAIN, {}, r"exec plugin '.*/plugin' returned no credentials"),
    ],
    ids=["context", "address", "no server", "certificate", "proxy", "plugin"],
)
def test_errors_name_the_field_of_a_kubeconfig(
    tmp_path: Path, user: Any, cluster: dict[str, Any], more: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConnectionConfigError, match=problem):
        load(tmp_path, plugin(tmp_path, user) if user else {}, cluster, **more)


@pytest.mark.parametrize(
    ("path", "more", "problem"),
    [
        ("absent", {}, "absent: no such file"),
        (None, {}, "no kubeconfig is given"),
        (None, {"context": "here"}, "there is no kubeconfig"),
    ],
)
def test_a_missing_kubeconfig_is_named(path: str | None, more: dict[str, str], problem: str) -> None:
    with pytest.raises(ConnectionConfigError, match=problem):
        load_connection(path, **more)


@pytest.mark.parametrize(
    "user",
    [
        {},
        {"token": "abc"},
        {"token": "", "username": "me", "password": "a b"},
        {"token": "abc", "tokenFile": "token"},
        {"tokenFile": "token"},
        {"client-certificate": "client.crt", "client-key": "client.key"},
        {"client-certificate-data": "client.crt", "client-key-data": "client.key", "token": "abc"},
        {"username": "me"},
    ],
    ids=["no user", "token", "password", "both", "file", "certificate", "data", "half a password"],
)
@pytest.mark.parametrize(
    "cluster",
    [
        {"server": "http://h:1/"},
        {"server": "https://h:1", "certificate-authority": "ca.crt"},
        {"server": "https://h:1/", "certificate-authority-data": "ca.crt", "tls-server-name": "name"},
        {"server": "https://h", "insecure-skip-tls-verify": True, "proxy-url": "http://p:1"},
    ],
    ids=["plain", "file", "data", "insecure"],
)
def test_a_plain_kubeconfig_means_what_the_library_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: dict[str, Any], cluster: dict[str, Any]
) -> None:
    files = _certificates(tmp_path)
    (tmp_path / "token").write_text("from a file\n", encoding="utf-8")

    def with_contents(fields: dict[str, Any]) -> dict[str, Any]:
        return {
            key: base64.b64encode((files / value).read_bytes()).decode() if key.endswith("-data") else value
            for key, value in fields.items()
        }

    path = str(kubeconfig(tmp_path / "k", cluster=with_contents(cluster), user=with_contents(user), namespace="team"))
    assert plain_kubeconfig(path, None) is not None
    ours, there = load_connection(path), load_connection(path, context="there")
    monkeypatch.setattr("capcard_sched.kube.connection.plain_kubeconfig", lambda *_: None)
    theirs = load_connection(path)
    assert (ours.server, ours.token(), ours.namespace, ours.proxy, ours.server_name) == (
        theirs.server,
        theirs.token(),
        theirs.namespace,
        theirs.proxy,
        theirs.server_name,
    )
    assert there.namespace == "elsewhere"
    assert (ours.ssl is None) is (theirs.ssl is None)
    if ours.ssl is not None and theirs.ssl is not None:
        assert ours.ssl.verify_mode is theirs.ssl.verify_mode
        assert ours.ssl.get_ca_certs() == theirs.ssl.get_ca_certs()


def _certificates(folder: Path) -> Path:
    """`ca.crt`, `client.crt` and `client.key`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "c")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    text = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for file, content in (("ca.crt", text), ("client.crt", text), ("client.key", private)):
        (folder / file).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        {"users": [{"name": "u", "user": {"exec": {"command": "x"}}}]},
        {"users": [{"name": "u", "user": {"auth-provider": {"name": "oidc"}}}]},
        {"users": [{"name": "u", "user": {"tokenFile": "absent"}}]},
        {"users": [{"name": "u", "user": None}]},
        {"users": [{"name": "u", "user": {}}] * 2},
        {"clusters": []},
        {"clusters": [{"name": "c", "cluster": {**HTTPS, "certificate-authority": "absent"}}]},
        {"clusters": [{"name": "c", "cluster": {**HTTPS, "certificate-authority-data": "%"}}]},
        {"current-context": "nirvana"},
    ],
)
def test_the_library_reads_what_is_not_plain(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = kubeconfig(tmp_path / "k", cluster=PLAIN, user={})
    assert plain_kubeconfig(str(path), None) is not None
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump({**document, **changes}), encoding="utf-8")
    assert plain_kubeconfig(str(path), None) is None
    assert plain_kubeconfig(f"{path}:{path}", None) is None


def test_a_service_account_token_is_read_again_after_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    _certificates(tmp_path)
    (tmp_path / "token").write_text("first\n", encoding="utf-8")
    now = [0.0]
    monkeypatch.setattr("capcard_sched.kube.plain_credentials.time.monotonic", lambda: now[0])
    connection = in_cluster(tmp_path)
    (tmp_path / "token").write_text("second", encoding="utf-8")
    assert (connection.server, connection.token()) == ("https://[fd00::1]:443", "first")
    now[0] = 61.0
    assert connection.token() == "second"
    (tmp_path / "token").write_text("", encoding="utf-8")
    now[0] = 122.0
    with pytest.raises(ConnectionConfigError, match="token is empty"):
        connection.token()


async def test_a_pod_authenticates_as_its_service_account(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    with pytest.raises(ConnectionConfigError, match="no service account of a pod"):
        in_cluster(folder)
    await cluster.create(plain("ServiceAccount", "robot"))
    (folder / "token").write_text(await cluster.token_of("robot") + "\n", encoding="utf-8")
    (folder / "namespace").write_text(cluster.namespace, encoding="utf-8")
    shutil.copy(cluster.control_plane.ca, folder / "ca.crt")
    host, _, port = cluster.control_plane.server.removeprefix("https://").rpartition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    connection = in_cluster(folder)
    assert connection.namespace == cluster.namespace
    async with Client(connection) as client:
        body = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).encode()
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        output = json.loads(await client.request("POST", path, body=body))
    assert output["status"]["userInfo"]["username"] == f"system:serviceaccount:{cluster.namespace}:robot"
    (folder / "token").write_text("another", encoding="utf-8")
    connection.renew()
    assert connection.token() == "another"
    (folder / "token").unlink()
    with pytest.raises(ConnectionConfigError, match="token file does not exist"):
        connection.renew()


# --- by a proxy -------------------------------------------------------------------------------------------------------


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


OPEN = b"HTTP/1.1 200 Connection established\r\n\r\n"


@asynccontextmanager
async def tunnels(answer: bytes = OPEN) -> AsyncIterator[tuple[list[bytes], str]]:
    """A proxy that answers CONNECT, and opens the tunnel for a 200; yields the heads of requests, and its address."""
    requested: list[bytes] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requested.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        if answer is not OPEN:
            writer.close()
            return
        host, _, port = requested[-1].split()[1].decode().rpartition(":")
        there_reader, there = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_pipe(reader, there), _pipe(there_reader, writer))

    async with await asyncio.start_server(tunnel, "127.0.0.1", 0) as server:
        yield requested, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_requests_and_streams_go_through_the_proxy_of_the_kubeconfig(cluster: Cluster) -> None:
    direct = load_connection(str(cluster.control_plane.kubeconfig))
    async with (
        tunnels() as (requested, proxy),
        Client(msgspec.structs.replace(direct, proxy=f"http://me:a%20secret@{proxy}")) as client,
    ):
        made = await client.request("POST", "/api/v1/nodes", body=json.dumps(node("n")).encode())
        assert b'"uid"' in made
        with pytest.raises(ApiError, match="404 NotFound"):
            await client.request("GET", "/api/v1/nodes/m")
        async with client.stream("/api/v1/namespaces", {"watch": "1"}) as stream:
            assert b'"ADDED"' in await stream.read()
    target = direct.server.removeprefix("https://").encode()
    login = b"Proxy-Authorization: Basic bWU6YSBzZWNyZXQ=\r\n"
    assert requested == [b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (target, target, login)] * 2


@pytest.mark.parametrize(
    "answer, problem",
    [
        (b"HTTP/1.1 407 Required\r\nContent-Length: 2\r\n\r\nno", "the proxy responded with status 407"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "the proxy responded with status 502"),
        (b"SSH-2.0\r\n\r\n", "not HTTP"),
    ],
    ids=["refused", "without a length", "another protocol"],
)
async def test_a_proxy_that_opens_no_tunnel_is_named_and_the_request_was_never_sent(
    answer: bytes, problem: str
) -> None:
    async with tunnels(answer) as (_, proxy):
        target = Connection("https://api.test:6443", ssl_context(), lambda: None, "default", proxy=f"http://{proxy}")
        async with Client(target) as client:
            with pytest.raises(Unreachable, match=rf"no connection to {proxy}: .*{problem}") as lost:
                await client.request("POST", "/api/v1/nodes", body=b"{}")
    assert not lost.value.sent


async def test_a_server_behind_a_tunnel_is_verified(cluster: Cluster) -> None:
    direct = load_connection(str(cluster.control_plane.kubeconfig))
    async with tunnels() as (_, proxy):
        changed = msgspec.structs.replace(direct, proxy=f"http://{proxy}", server_name="another.example.com")
        async with Client(changed) as client:
            with pytest.raises(Unreachable, match=r"another\.example\.com") as lost:
                await client.request("GET", "/version")
    assert not lost.value.sent


async def test_a_proxy_gets_the_whole_address_of_a_server_without_tls() -> None:
    async with tunnels(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as (requested, proxy):
        connection = Connection("http://api.test/c", None, lambda: None, "default", proxy=f"http://me@{proxy}")
        async with Client(connection) as client:
            assert await client.request("GET", "/version") == b"ok"
    assert requested[0].startswith(
        b"GET http://api.test/c/version HTTP/1.1\r\nHost: api.test\r\nProxy-Authorization: Basic bWU6\r\n"
    )
