"""Address and credentials of the API server: kubeconfigs, credential plugins, service accounts."""

from __future__ import annotations

import json
import shutil
import ssl
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import ConnectionConfigError, in_cluster, load_connection
from tests.controlplane.cluster import Cluster


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


def test_server_namespace_and_token_come_from_the_current_context(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", cluster=PLAIN, user={"token": "abc"}, namespace="team")
    connection = load_connection(str(path))
    assert (connection.server, connection.ssl, connection.namespace) == ("http://127.0.0.1:8080", None, "team")
    assert connection.token() == "abc"
    assert load_connection(str(path), context="there").namespace == "elsewhere"


def test_flag_then_variable_then_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def named(name: str, where: str) -> str:
        return str(kubeconfig(tmp_path / where, cluster=PLAIN, user={"token": name}))

    named("home", "home/.kube/config")
    assert load_connection().token() == "home"
    monkeypatch.setenv("KUBECONFIG", named("variable", "a"))
    assert load_connection().token() == "variable"
    assert load_connection(named("flag", "b")).token() == "flag"


def test_several_files_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kubeconfig(tmp_path / "a", cluster=PLAIN, user={"token": "first"})
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path / 'absent'}")
    assert load_connection().token() == "first"


def test_master_replaces_the_server_and_may_stand_alone(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", cluster=PLAIN, user={"token": "abc"})
    both = load_connection(str(path), master="https://10.0.0.1:6443/")
    assert (both.server, both.token()) == ("https://10.0.0.1:6443", "abc")
    assert both.ssl is not None
    alone = load_connection(master="http://127.0.0.1:1")
    assert (alone.server, alone.token(), alone.namespace, alone.ssl) == ("http://127.0.0.1:1", None, "default", None)


def test_proxy_and_name_of_the_certificate_are_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://from-the-environment:3128")
    cluster = {"server": "https://h:1", "tls-server-name": "name", "insecure-skip-tls-verify": True}
    connection = load_connection(str(kubeconfig(tmp_path / "k", cluster=cluster, user={})))
    assert (connection.proxy, connection.server_name) == (None, "name")
    assert connection.ssl is not None
    assert connection.ssl.verify_mode is ssl.CERT_NONE
    cluster["proxy-url"] = "http://proxy:3128"
    assert load_connection(str(kubeconfig(tmp_path / "k", cluster=cluster, user={}))).proxy == "http://proxy:3128"
    cluster["proxy-url"] = "socks5://proxy:1080"
    with pytest.raises(ConnectionConfigError, match="'socks5://proxy:1080' is not supported; accepted: http:"):
        load_connection(str(kubeconfig(tmp_path / "k", cluster=cluster, user={})))


def test_user_and_password_are_distinguished_from_a_token(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", cluster=PLAIN, user={"username": "me", "password": "secret"})
    assert load_connection(str(path)).token() == "Basic bWU6c2VjcmV0"


def test_a_token_file_is_read_again_on_renewal(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n", encoding="utf-8")
    connection = load_connection(str(kubeconfig(tmp_path / "k", cluster=PLAIN, user={"tokenFile": str(file)})))
    assert connection.token() == "first"
    file.write_text("second\n", encoding="utf-8")
    connection.renew()
    assert connection.token() == "second"


def plugin(tmp_path: Path, body: str) -> dict[str, Any]:
    script = tmp_path / "plugin"
    script.write_text(f"#!{sys.executable}\nimport json, pathlib, sys\n{body}\n", encoding="utf-8")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": str(script),
            "interactiveMode": "Never",
        }
    }


COUNTING = """
count = pathlib.Path(__file__).with_name("count")
count.write_text(count.read_text() + "x" if count.exists() else "x")
status = {"token": f"token-{len(count.read_text())}", "expirationTimestamp": "%s"}
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
"""


@pytest.mark.parametrize("expires, again", [("2100-01-01T00:00:00Z", False), ("2001-01-01T00:00:00Z", True)])
def test_a_credential_plugin_runs_again_when_its_token_has_expired(tmp_path: Path, expires: str, again: bool) -> None:
    user = plugin(tmp_path, COUNTING % expires)
    connection = load_connection(str(kubeconfig(tmp_path / "k", cluster=PLAIN, user=user)))
    first = connection.token()
    assert first is not None
    assert (connection.token() != first) is again
    connection.renew()
    assert connection.token() != first


def test_a_credential_plugin_that_fails_is_named(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", cluster=PLAIN, user=plugin(tmp_path, "sys.exit('no credentials today')"))
    with pytest.raises(ConnectionConfigError, match=r"exec plugin '.*/plugin' returned no credentials"):
        load_connection(str(path))


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


def test_errors_name_the_missing_file_context_or_address(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", cluster=PLAIN, user={})
    with pytest.raises(ConnectionConfigError, match="absent: no such file"):
        load_connection(str(tmp_path / "absent"))
    with pytest.raises(ConnectionConfigError, match="nirvana"):
        load_connection(str(path), context="nirvana")
    with pytest.raises(ConnectionConfigError, match="'localhost:1' is not an address; accepted: http://host:port"):
        load_connection(str(path), master="localhost:1")
    with pytest.raises(ConnectionConfigError, match="no kubeconfig is given"):
        load_connection()
    with pytest.raises(ConnectionConfigError, match="there is no kubeconfig"):
        load_connection(context="here")
    no_server = kubeconfig(tmp_path / "n", cluster={}, user={})
    with pytest.raises(ConnectionConfigError, match="is not an address"):
        load_connection(str(no_server), master=None)
    bad_authority = {"server": "https://h:1", "certificate-authority": str(tmp_path / "absent.crt")}
    with pytest.raises(ConnectionConfigError, match=r"absent\.crt"):
        load_connection(str(kubeconfig(tmp_path / "a", cluster=bad_authority, user={})))


async def test_a_pod_authenticates_as_its_service_account(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    with pytest.raises(ConnectionConfigError, match="no service account of a pod"):
        in_cluster(folder)
    await cluster.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}})
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
        output = json.loads(
            await client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=body)
        )
    assert output["status"]["userInfo"]["username"] == f"system:serviceaccount:{cluster.namespace}:robot"
    (folder / "token").write_text("another", encoding="utf-8")
    connection.renew()
    assert connection.token() == "another"
    (folder / "token").unlink()
    with pytest.raises(ConnectionConfigError, match="token file does not exist"):
        connection.renew()
