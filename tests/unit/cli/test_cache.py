"""The socket of `capcard-sched cache`: what it accepts, who may use it, and which commands use it.

The API server of these tests accepts connections and answers nothing: the cache stays before its first list.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from capcard_sched.cli.cache_client import LENGTH
from tests.insight.scenes import WAITING

pytestmark = pytest.mark.processes

PROGRAM = Path(sys.executable).with_name("capcard-sched")
_SECONDS = 60


class Silence:
    """A folder with kubeconfigs of API servers that answer nothing, and a program that runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.socket = folder, folder / "c.sock"
        self.servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        for number in range(2):
            (folder / f"{number}.kubeconfig").write_text(json.dumps(self._config(number)))
        (folder / "scene.yaml").write_text(WAITING)

    def url(self, number: int) -> str:
        return f"http://127.0.0.1:{self.servers[number].getsockname()[1]}"

    def _config(self, number: int) -> dict[str, object]:
        return {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": self.url(number)}}],
            "users": [{"name": "u", "user": {}}],
        }

    def start(self, line: str, variable: Path | str = "", config: int = 0) -> subprocess.Popen[str]:
        environment = {**os.environ, "KUBECONFIG": f"{config}.kubeconfig", "CAPCARD_SCHED_CACHE": str(variable)}
        command = [str(PROGRAM), *line.split()]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=pipe, stderr=pipe, text=True)

    def run(self, line: str, variable: Path | str = "", config: int = 0) -> tuple[int, str, str]:
        process = self.start(line, variable, config)
        out, err = process.communicate(timeout=_SECONDS)
        return process.returncode, out, err

    def begin(self) -> subprocess.Popen[str]:
        """A cache that listens."""
        process = self.start(f"cache --socket {self.socket}")
        deadline = time.monotonic() + _SECONDS
        while True:
            with closing(socket.socket(socket.AF_UNIX)) as probe:
                try:
                    probe.connect(str(self.socket))
                    return process
                except OSError:
                    assert process.poll() is None, process.communicate()
                    assert time.monotonic() < deadline
            time.sleep(0.05)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and standard error."""
    _, err = process.communicate(timeout=_SECONDS)
    return process.returncode, err


@pytest.fixture
def silence() -> Iterator[Silence]:
    with tempfile.TemporaryDirectory() as folder:  # a socket's path has at most 107 bytes
        found = Silence(Path(folder))
        yield found
        for server in found.servers:
            server.close()


@pytest.fixture
def listening(silence: Silence) -> Iterator[Silence]:
    process = silence.begin()
    yield silence
    process.send_signal(signal.SIGINT)
    assert ended(process) == (0, "")
    assert not silence.socket.exists()


def test_a_command_without_its_cache_names_flag_or_variable_and_path(silence: Silence) -> None:
    path = silence.socket
    hint = f"`capcard-sched cache --socket {path}` starts one"
    expected = f"{path}: No such file or directory; {hint}\n"
    assert silence.run("queue list", path) == (2, "", f"error: CAPCARD_SCHED_CACHE: {expected}")
    assert silence.run(f"explain x --cache={path}") == (2, "", f"error: --cache: {expected}")
    path.write_text("")
    expected = f"error: CAPCARD_SCHED_CACHE: {path}: no cache listens there; {hint}\n"
    assert silence.run("what-if --drain n1", path) == (2, "", expected)


def test_files_are_read_without_the_cache(silence: Silence) -> None:
    reason = "answers about a live cluster as it is; -f and --recording read files"
    for variable in ("", silence.socket):
        assert silence.run("explain waits -f scene.yaml", variable)[0] == 0
    for line in ("explain waits -f scene.yaml", "what-if --drain n1 -f scene.yaml", "job list --recording r"):
        assert silence.run(f"{line} --cache {silence.socket}") == (2, "", f"error: --cache: {reason}\n")


def test_a_listening_cache_lets_other_commands_run_on_their_own(listening: Silence) -> None:
    plain = listening.run("explain waits -f scene.yaml")
    assert plain[0] == 0
    assert listening.run("explain waits -f scene.yaml", listening.socket) == plain
    reason = "answers about a live cluster as it is; --watch follows it"
    expected = (2, "", f"error: --cache: {reason}\n")
    assert listening.run(f"queue list -w --cache {listening.socket}") == expected
    assert listening.run("explain --help", listening.socket)[1].startswith("Usage: capcard-sched explain")
    assert listening.run("explain waits --no-such-flag", listening.socket)[0] == 2


def test_a_cache_answers_about_its_own_cluster_once_it_knows_it(listening: Silence) -> None:
    line = f"queue list --cache {listening.socket}"
    text = f"the cache of {listening.url(0)} reads the cluster for the first time: no answer yet"
    assert listening.run(line) == (2, "", f"error: --cache: {text}\n")
    text = f"the cache holds the cluster at {listening.url(0)}, and the kubeconfig names {listening.url(1)}"
    assert listening.run(line, config=1) == (2, "", f"error: --cache: {text}\n")


@pytest.mark.parametrize("path, reason", [("no/c.sock", "No such file or directory"), ("c" * 200, "path too long")])
def test_a_socket_that_cannot_be_made_is_an_error(silence: Silence, path: str, reason: str) -> None:
    status, out, err = silence.run(f"cache --socket {path}")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: --socket: {path}: ")
    assert reason in err


def test_a_socket_of_an_ended_process_is_replaced_and_nothing_else(silence: Silence) -> None:
    start = f"cache --socket {silence.socket}"
    silence.socket.write_text("kept")
    assert silence.run(start) == (2, "", f"error: --socket: {silence.socket}: exists and is no socket\n")
    assert silence.socket.read_text() == "kept"
    silence.socket.unlink()
    process = silence.begin()
    assert silence.socket.stat().st_mode & 0o777 == 0o600
    expected = f"error: --socket: {silence.socket}: a process listens on it already\n"
    assert silence.run(start) == (2, "", expected)
    process.kill()
    assert ended(process) == (-signal.SIGKILL, "")
    assert silence.socket.exists()
    process = silence.begin()
    process.terminate()
    assert ended(process) == (0, "")
    assert not silence.socket.exists()


def replies(path: Path, *sent: bytes, ends: bool = True) -> bytes:
    """The reply to bytes without streams. `ends`: the sender says no more."""
    with closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(str(path))
        with suppress(OSError):  # the cache may have refused the first part and closed the connection
            for part in sent:
                connection.sendall(part)
            if ends:
                connection.shutdown(socket.SHUT_WR)
        reply = b""
        while part := connection.recv(4096):
            reply += part
        return reply


def with_streams(path: Path, request: bytes, length: int) -> bytes:
    with closing(socket.socket(socket.AF_UNIX)) as connection, Path(os.devnull).open("r+") as null:
        connection.settimeout(_SECONDS)
        connection.connect(str(path))
        with suppress(OSError):  # the cache may have refused the length and closed the connection
            socket.send_fds(connection, [LENGTH.pack(length)], [null.fileno()] * 3)
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        return connection.recv(4096)


def test_a_malformed_request_is_refused_and_others_are_answered(listening: Silence) -> None:
    path = listening.socket
    assert replies(path) == b"!no request of capcard-sched"
    assert replies(path, b"GET / ") == b"!no request of capcard-sched"
    assert replies(path, ends=False) == b"!no request within 5 s"
    assert with_streams(path, b"18\0/", 100) == b"!the request ends early"
    assert with_streams(path, b"", 2**40) == b"!a request of 1099511627776 bytes; at most 8388608"
    assert with_streams(path, b"abc", 3).startswith(b"!no request of capcard-sched: ")
    assert with_streams(path, b"18\0/no/such/folder\x000", 20).startswith(b"!no request of capcard-sched: ")
    assert "for the first time" in listening.run("queue list", path)[2]


@pytest.mark.skipif(os.getuid() != 0, reason="only root acts as another user")
def test_another_user_is_refused_by_the_cache_and_refuses_it(listening: Silence) -> None:
    listening.folder.chmod(0o711)
    listening.socket.chmod(0o777)
    code = (
        "import os, socket, sys; os.setuid(65534); c = socket.socket(socket.AF_UNIX); c.connect(sys.argv[1]);"
        " print(c.recv(4096).decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(listening.socket)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "!it answers uid 0 only, not uid 65534\n", done.stderr
    code = (
        "import os, sys; sys.path[:0] = sys.argv[2:]; from capcard_sched.cli.cache_client import CacheError, connect\n"
        "os.setuid(65534)\ntry:\n    connect(sys.argv[1])\nexcept CacheError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(listening.socket)], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{listening.socket}: the cache belongs to another user, uid 0\n", done.stderr


def test_silent_clients_do_not_delay_others(listening: Silence) -> None:
    """Each held one of two places for 5 s: with 40 of them, an answer took 100 s."""
    with ExitStack() as stack:
        for number in range(40):
            silent = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
            silent.connect(str(listening.socket))
            if number % 2:
                silent.sendall(b"x" * 3)
        assert "for the first time" in listening.run("queue list", listening.socket)[2]


def test_programs_that_do_not_read_their_output_do_not_block_others(listening: Silence) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    words = ["18", "/", "2", "queue", "list", f"KUBECONFIG={listening.folder}/0.kubeconfig"]
    request = "\0".join(words).encode()
    with ExitStack() as stack:
        stack.callback(os.close, reader)
        stack.callback(os.close, writer)
        for _ in range(2 * (os.cpu_count() or 2)):
            stopped = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
            stopped.connect(str(listening.socket))
            socket.send_fds(stopped, [LENGTH.pack(len(request))], [writer] * 3)
            stopped.sendall(request)
        assert "for the first time" in listening.run("queue list", listening.socket)[2]
