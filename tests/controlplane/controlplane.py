"""A real etcd and kube-apiserver on loopback, started for tests and gone with them."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.controlplane.audit import POLICY, Audited, read
from tests.controlplane.etcd import Etcd
from tests.controlplane.processes import end, free_port, spawn, tail

#: Users of every control plane and their groups. Those of `system:masters` may do everything and differ in the audit
#: log only; the others may do nothing until a test grants it to them.
USERS: Final[Mapping[str, str]] = {
    "admin": "system:masters",
    "kubelet": "system:masters",
    "scheduler-a": "system:masters",
    "scheduler-b": "system:masters",
    "nobody": "",
    "somebody": "",
}

# Without a kubelet no component removes a new node's not-ready taint, and pods here need no token to call back with.
_ADMISSION_OFF: Final = "TaintNodesByCondition,ServiceAccount"

_FOLDER: Final = "capcard-controlplane-"

#: Keys of etcd that the server keeps for itself: they come and go with its own doings, not with a test's.
_SERVERS_OWN: Final = (
    "/registry/apiregistration.k8s.io/",
    "/registry/flowschemas/",
    "/registry/ipaddresses/",
    "/registry/leases/kube-system/apiserver-",
    "/registry/masterleases/",
    "/registry/namespaces/default",
    "/registry/namespaces/kube-",
    "/registry/prioritylevelconfigurations/",
    "/registry/ranges/",
    "/registry/servicecidrs/",
    "/registry/services/specs/default/kubernetes",
)


class ControlPlane:
    """One etcd and one kube-apiserver with RBAC, and a kube-controller-manager on request.

    The methods block for as long as it takes; from async code call the slow ones (`start_apiserver`, `restart_etcd`)
    by `asyncio.to_thread`. Flags given to the constructor come last, so they win over ours.

    Args:
        programs: Folder of the programs (`build.locate`).
        apiserver_flags: Added to kube-apiserver's at its next start.
        audit: Whether requests are logged: `audit()` reads them.
    """

    def __init__(self, programs: Path, *, apiserver_flags: Sequence[str] = (), audit: bool = True) -> None:
        self.programs = programs
        _remove_orphans()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))
        self.tokens: Mapping[str, str] = {user: secrets.token_urlsafe(16) for user in USERS}
        #: Values with the lifetime of this server, keyed by their owner.
        self.memo: dict[str, Any] = {}
        #: Number of starts of its programs: a readiness result from before a start is void.
        self.starts = 0
        self.apiserver_flags = list(apiserver_flags)
        self._with_audit = audit
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._kept: frozenset[str] = frozenset()
        self._write_files()
        self._choose_ports()

    # --- addresses and credentials ------------------------------------------------------------------------------------

    @property
    def server(self) -> str:
        """URL of the API server."""
        return f"https://127.0.0.1:{self._port}"

    @property
    def ca(self) -> Path:
        """PEM file of the authority that signed the server's certificate; the same over restarts."""
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def ssl(self) -> ssl.SSLContext:
        """TLS settings of a client that trusts the server."""
        return ssl.create_default_context(cafile=str(self.ca))

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig file of `admin`."""
        return self.kubeconfig_for("admin")

    def token(self, user: str) -> str:
        """Bearer token of one of `USERS`."""
        return self.tokens[user]

    def kubeconfig_for(
        self, user: str = "", *, token: str = "", server: str = "", namespace: str = "default", name: str = ""
    ) -> Path:
        """A kubeconfig file of one of `USERS`, or of the user of `token`.

        `server` is another way to the API server: a proxy's URL.
        """
        cluster = {"server": server or self.server, "certificate-authority": str(self.ca)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "tests", "user": {"token": token or self.token(user)}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests", "namespace": namespace}}],
            "current-context": "tests",
        }
        file = self.folder / f"{name or user or secrets.token_hex(4)}{'-by-proxy' if server else ''}.kubeconfig"
        file.write_text(json.dumps(content, indent=1), "utf-8")
        return file

    # --- start and stop -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, _type: type[BaseException] | None, _value: object, _trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Starts what does not run and waits until it is ready (2 to 4 s in all)."""
        for attempt in range(5):
            try:
                self.start_etcd()
                self.start_apiserver()
                return
            except PortTakenError:
                # Another process took a port between our choice and its use. Data and certificates contain no ports.
                if attempt == 4:
                    raise
                self._end("kube-apiserver")
                self._end("etcd")
                self._choose_ports()

    def stop(self) -> None:
        """Ends everything and removes the folder with data, logs and certificates."""
        for name in list(self._processes):
            self._end(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def running(self, name: str) -> bool:
        """Whether the program of that name (`etcd`, `kube-apiserver`, …) runs."""
        return name in self._processes and self._processes[name].poll() is None

    def pid(self, name: str) -> int:
        """Process id of a program that runs."""
        return self._processes[name].pid

    def start_etcd(self) -> None:
        """Starts etcd on the data it left, unless it runs."""
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._run(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # what a crash of the machine would lose is no matter here
            "--log-level=warn",
        )
        self._wait("etcd", self._etcd.answers)

    def start_apiserver(self) -> None:
        """Starts the API server, unless it runs, and waits until it reports ready."""
        if not self.running("kube-apiserver"):
            audit = [
                f"--audit-policy-file={self.folder / 'audit-policy.yaml'}",
                f"--audit-log-path={self.folder / 'audit.log'}",
                "--audit-log-maxsize=100000",  # MB: one file, so that its reader needs no others
            ]
            self._run(
                "kube-apiserver",
                f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                f"--secure-port={self._port}",
                f"--cert-dir={self.folder / 'certificates'}",
                "--authorization-mode=RBAC",
                f"--token-auth-file={self.folder / 'tokens.csv'}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={self.folder / 'service-accounts.key'}",
                f"--service-account-signing-key-file={self.folder / 'service-accounts.key'}",
                "--service-cluster-ip-range=10.0.0.0/24",
                "--endpoint-reconciler-type=none",
                "--allow-privileged",
                f"--disable-admission-plugins={_ADMISSION_OFF}",
                *(audit if self._with_audit else []),
                *self.apiserver_flags,
            )
        self._wait("kube-apiserver", self.is_ready)

    def start_controller_manager(self, controllers: str = "*") -> None:
        """Starts kube-controller-manager with the named controllers (as for its flag `--controllers`)."""
        self._run(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--controllers={controllers}",
            "--leader-elect=false",
            "--use-service-account-credentials=false",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            "--kube-api-qps=500",  # 20 by default: it would be the slowest part of a test
            "--kube-api-burst=1000",
            f"--service-account-private-key-file={self.folder / 'service-accounts.key'}",
        )

    def stop_controller_manager(self) -> None:
        """Ends kube-controller-manager, if it runs."""
        self._end("kube-controller-manager")

    def start_scheduler(self, *flags: str) -> None:
        """Starts kube-scheduler (`build.COMPARED`) with the client limits of its own performance tests."""
        client = {"kubeconfig": str(self.kubeconfig_for("scheduler-b")), "qps": 5000, "burst": 5000}
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": client,
            "leaderElection": {"leaderElect": False},
        }
        file = self.folder / "kube-scheduler.config"
        file.write_text(json.dumps(config), "utf-8")
        self._run("kube-scheduler", f"--config={file}", "--secure-port=0", *flags)

    def stop_scheduler(self) -> None:
        """Ends kube-scheduler, if it runs."""
        self._end("kube-scheduler")

    def kill_apiserver(self) -> None:
        """SIGKILL to the API server: connections break where they are."""
        self._end("kube-apiserver")

    def restart_apiserver(self) -> None:
        """Kills the API server and starts it again: its watch cache begins anew, so older watches get 410."""
        self.kill_apiserver()
        self.start_apiserver()

    def restart_etcd(self) -> None:
        """Kills etcd and starts it again with the same data."""
        self._end("etcd")
        self.start_etcd()

    def is_ready(self) -> bool:
        """Whether the API server answers /readyz with ok."""
        try:
            context = self.ssl
        except OSError:  # the server has not written its certificate, or not all of it
            return False
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=5, context=context)
        try:
            connection.request("GET", "/readyz", headers={"Authorization": f"Bearer {self.token('admin')}"})
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    @property
    def store(self) -> Etcd:
        """etcd, for objects by the ten thousand."""
        return self._etcd

    # --- faults -------------------------------------------------------------------------------------------------------

    def revision(self) -> int:
        """The store's revision: the newest resourceVersion there is."""
        return self._etcd.revision()

    def compact(self) -> int:
        """Forgets the store's history up to now and returns its revision.

        Lists in pages that began before it get 410, and so do watches that the store itself serves. A watch that the
        API server serves from its cache gets 410 only when the cache is new too: call `restart_apiserver()` after it.
        """
        revision = self._etcd.revision()
        self._etcd.compact(revision)
        return revision

    def keep_what_is_there(self) -> None:
        """From now on `wipe` leaves the objects that there are now."""
        self._kept = frozenset(self._etcd.object_keys())

    def wipe(self) -> int:
        """Deletes, in the store itself, every object made since `keep_what_is_there`; returns how many.

        No finalizer, grace period or missing controller stands in the way. Watches see ordinary DELETED events.
        """
        assert self._kept, "say first what to keep"
        made = [key for key in self._etcd.object_keys() if key not in self._kept and not key.startswith(_SERVERS_OWN)]
        self._etcd.delete(made)
        return len(made)

    @property
    def audited(self) -> int:
        """The length of the audit log, in bytes."""
        log = self.log("audit")
        return log.stat().st_size if log.exists() else 0

    def audit(self, since: int = 0) -> Iterator[Audited]:
        """See `read`."""
        return read(self.log("audit"), since)

    def log(self, name: str) -> Path:
        """Log file of a program."""
        return self.folder / f"{name}.log"

    # --- inside -------------------------------------------------------------------------------------------------------

    def _choose_ports(self) -> None:
        ports: list[int] = []
        while len(ports) < 3:
            port = free_port()
            if port not in ports:
                ports.append(port)
        self._port, self._etcd_port, self._peer_port = ports
        self._etcd = Etcd(self._etcd_port)

    def _write_files(self) -> None:
        rows = [f'{self.tokens[user]},{user},{user},"{groups}"\n' for user, groups in USERS.items()]
        (self.folder / "tokens.csv").write_text("".join(rows), "utf-8")
        (self.folder / "audit-policy.yaml").write_text(POLICY, "utf-8")
        (self.folder / "service-accounts.key").write_bytes(_elliptic_key())

    def _run(self, name: str, *flags: str) -> None:
        if not self.running(name):
            self.starts += 1
            self._processes[name] = spawn([self.programs / name, *flags], log=self.log(name))

    def _end(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            end(process)

    def _wait(self, name: str, ready: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.running(name):
                last = tail(self.log(name))
                raise (PortTakenError if "address already in use" in last else RuntimeError)(f"{name} ended:\n{last}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} is not ready after {seconds:.0f} s:\n{tail(self.log(name))}")
            time.sleep(0.05)


def _remove_orphans() -> None:
    """Removes the folders of processes that were killed before they could do it themselves."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        owner = folder.name.removeprefix(_FOLDER).partition("-")[0]
        try:
            os.kill(int(owner), 0)
        except ProcessLookupError:
            shutil.rmtree(folder, ignore_errors=True)
        except (PermissionError, ValueError):
            continue  # of another user, or not one of these


class PortTakenError(RuntimeError):
    """A program found its port in use."""


def _elliptic_key() -> bytes:
    """A new private key on P-256, which signs the tokens of service accounts."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
