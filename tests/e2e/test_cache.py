"""`capcard-sched cache` on a real API server: the same texts as without it, of the present state."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from capcard_sched.cli.sources.source import INSTALLED_CONF
from capcard_sched.insight.sources.live_objects import ReadableLists
from capcard_sched.insight.sources.object_view import _kind_of
from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.instrumentation import Observer
from tests.clock import until
from tests.controlplane import deprecations
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import node, plain
from tests.e2e.asking import A10, NO_CONF, Answer, set_the_scene

#: The program with a clock that stands: ages are the same in two answers.
CLOCK = "import os, time; time.time = lambda now=float(os.environ['NOW']): now\n"
PROGRAM = (sys.executable, "-c", f"{CLOCK}from capcard_sched.cli.main import main; main()")
#: Seconds of a few commands on a loaded machine.
_SECONDS = 600
#: A scheduler-conf that admits no job, and has one key too many.
_CONF = 'actions: "allocate"\nsurplus: 1\ntiers:\n- plugins:\n  - name: gang\n'
#: A module of --plugins-dir that never ends its import.
_ENDLESS = "import os, pathlib, time\npathlib.Path(f'asked-{os.getpid()}').touch()\ntime.sleep(600)\n"


class Shell:
    """Runs the program as a user does."""

    def __init__(self, config: Path, namespace: str, folder: Path) -> None:
        self.folder, self.socket = folder, folder / "cache.sock"
        self._environment = {**os.environ, "KUBECONFIG": str(config), "NOW": str(time.time() + 100)}
        self._namespace = namespace

    async def start(self, line: str, **variables: str) -> asyncio.subprocess.Process:
        words = line.format(namespace=self._namespace, socket=self.socket).split()
        return await asyncio.create_subprocess_exec(
            *PROGRAM,
            *words,
            cwd=self.folder,
            env={**self._environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    async def __call__(self, line: str, **variables: str) -> Answer:
        process = await self.start(line, **variables)
        async with asyncio.timeout(_SECONDS):
            out, err = await process.communicate()
        assert process.returncode is not None
        deprecations.scan(line, err.decode())
        return Answer(process.returncode, out.decode(), err.decode())

    async def ask_cache(self, line: str, **variables: str) -> Answer:
        return await self(line, CAPCARD_SCHED_CACHE=str(self.socket), **variables)

    async def both(self, line: str) -> tuple[Answer, Answer]:
        """The answer without the cache, and with it."""
        plain, cached = await asyncio.gather(self(line), self.ask_cache(line))
        return plain, cached

    async def begin(self) -> asyncio.subprocess.Process:
        """A cache in sync."""
        process = await self.start("cache --socket {socket}")
        assert process.stdout is not None
        async with asyncio.timeout(_SECONDS):
            assert (await process.stdout.readline()).startswith(b"in sync with ")
        return process


@pytest.fixture
async def shell(cluster: Cluster, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Shell]:
    """A cluster with a scene, and a cache of it."""
    await set_the_scene(cluster)
    config = control_plane.kubeconfig_for("scheduler-b", namespace=cluster.namespace, name="cached")
    found = Shell(config, cluster.namespace, tmp_path)
    process = await found.begin()
    try:
        yield found
    finally:
        process.terminate()
        assert await process.wait() == 0
        assert not found.socket.exists()


# --- texts ----------------------------------------------------------------------------------------------------------

ANSWERS = [
    "explain waits",
    "explain waits-1 -n {namespace} -o json",
    "explain waits --fix",
    "explain nothing",
    "what-if --until 1m --quota q/A10=6",
]
LISTS = [
    "job list -A -o json",
    "job list fits --scheduler-name other --expected-start",
    "queue list",
    "card list -o wide",
    "node list -o yaml",
    "pod list -n {namespace} -o wide",
]


async def listed(client: Client, *, probe: bool) -> ReadableLists:
    async with ReadableLists(client, "", Observer(), probe=probe) as lists:
        async for _ in lists.read():
            pass
    return lists


async def test_one_object_of_each_kind_shows_what_is_readable(cluster: Cluster, control_plane: ControlPlane) -> None:
    await cluster.create_all([node("n1"), node("n2"), node("n3")])
    async with Client(load_connection(str(control_plane.kubeconfig_for("scheduler-b")))) as client:
        whole, probed = [await listed(client, probe=probe) for probe in (False, True)]
    assert (probed.kinds, probed.unreadable) == (whole.kinds, whole.unreadable)
    nodes = [[delta for delta in found.deltas if _kind_of(delta) == "Node"] for found in (whole, probed)]
    assert [len(found) for found in nodes] == [3, 1]


@pytest.mark.parametrize("lines", [ANSWERS, LISTS], ids=["answers", "lists"])
async def test_the_texts_are_those_without_the_cache(shell: Shell, lines: list[str]) -> None:
    for line in lines:
        plain, cached = await shell.both(line)
        assert cached == plain, line
        assert NO_CONF in plain.err
        assert plain.out or plain.status, line


async def test_completion_asks_the_cache_and_a_watch_does_not(shell: Shell) -> None:
    plain, cached = await shell.both("__complete explain wai")
    assert cached == plain == (0, "waits\n:4\n", "")
    watch = await shell.start("queue list -w -o name", CAPCARD_SCHED_CACHE=str(shell.socket))
    assert watch.stdout is not None
    async with asyncio.timeout(_SECONDS):
        shown = [(await watch.stdout.readline()).decode() for _ in range(2)]
    watch.terminate()
    await watch.communicate()
    assert shown == [f"queue.scheduling.volcano.sh/{name}\n" for name in ("other", "q")]


async def test_the_next_answer_shows_a_change(cluster: Cluster, shell: Shell) -> None:
    for member in ("waits-1", "fits-0"):
        await cluster.delete("pods", member)
    await cluster.patch("queues", "q", {"spec": {"weight": 7}, "metadata": {"annotations": {"note": "new"}}})
    await cluster.bind("waits-0", "n1")
    await cluster.patch("nodes", "n2", {"spec": {"unschedulable": True}})
    namespace, _, name = INSTALLED_CONF.partition("/")
    await cluster.make_namespace(namespace)
    await cluster.create(plain("ConfigMap", name, namespace=namespace, data={"scheduler.yaml": _CONF}))
    written_plainly = await shell("snapshot -o cluster.json")
    file = shell.folder / "cluster.json"
    written = file.read_text()
    assert not written_plainly.status

    async def same() -> bool:
        return await shell.ask_cache("snapshot -o cluster.json") == written_plainly and file.read_text() == written

    await until(same, "the watch events", within=_SECONDS)
    for line in ("pod list -o wide", "card list", "explain waits -o json"):
        direct, cached = await shell.both(line)
        assert cached == direct, line
        assert NO_CONF not in direct.err
    assert "surplus" in direct.err


async def test_a_cache_holds_what_its_kubeconfig_may_read(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await set_the_scene(cluster)
    groups = {"": "pods", "scheduling.volcano.sh": "podgroups", "batch.volcano.sh": "jobs"}
    rules = [{"apiGroups": [group], "resources": [name], "verbs": ["get", "list"]} for group, name in groups.items()]
    await cluster.allow("somebody", rules)
    config = control_plane.kubeconfig_for("somebody", namespace=cluster.namespace, name="cached-in-part")
    shell = Shell(config, cluster.namespace, tmp_path)
    status, _, err = await shell("cache --socket {socket}")
    assert status == 2
    assert err.splitlines()[-1].startswith("error: access denied: ")
    assert "cannot watch resource" in err
    await cluster.patch(
        "roles", "may-somebody", {"rules": [{**rule, "verbs": ["get", "list", "watch"]} for rule in rules]}
    )
    process = await shell.begin()
    try:
        for line in ("explain waits", "job list", "card list"):
            plain, cached = await shell.both(line)
            assert cached == plain, line
            assert "nodes, podgroups of other namespaces" in cached.err
        text = f"the cache may read namespace {cluster.namespace} only, and elsewhere is asked for"
        expected = f"error: --cache: {text}; `capcard-sched cache -n elsewhere` reads it\n"
        assert await shell.ask_cache("job list -n elsewhere") == (2, "", expected)
    finally:
        process.terminate()
        await process.wait()


# --- processes ------------------------------------------------------------------------------------------------------


async def test_answers_end_with_their_program_and_programs_with_their_answer(shell: Shell) -> None:
    plugins = shell.folder / "plugins"
    plugins.mkdir()
    (plugins / "endless.py").write_text(_ENDLESS)

    def copies() -> set[int]:
        return {int(path.name.partition("-")[2]) for path in shell.folder.glob("asked-*")}

    async def begin() -> tuple[asyncio.subprocess.Process, int]:
        before = copies()
        process = await shell.start("queue list --cache {socket} --plugins-dir plugins")
        await until(lambda: copies() != before, "a process", within=_SECONDS)
        return process, min(copies() - before)

    interrupted, copy = await begin()
    interrupted.send_signal(signal.SIGINT)
    assert await interrupted.wait() == 130
    await until(lambda: not Path(f"/proc/{copy}").exists(), "its end", within=_SECONDS)

    waiting, copy = await begin()
    os.kill(copy, signal.SIGKILL)
    _, err = await waiting.communicate()
    text = "its process for this request ended without a response"
    assert (waiting.returncode, err.decode().splitlines()[-1]) == (1, f"error: --cache: {shell.socket}: {text}")

    full = [(await begin())[0] for _ in range(max(2, os.cpu_count() or 2))]
    late = await shell.start("queue list --cache {socket}")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await late.wait()
    full[0].terminate()
    out, _ = await late.communicate()
    assert out.startswith(b"QUEUE"), "it was its turn"
    for process in full[1:]:
        process.kill()
    await asyncio.gather(*(process.wait() for process in full))


@pytest.mark.campaign
async def test_a_cache_out_of_sync_refuses_until_it_is_back(shell: Shell, control_plane: ControlPlane) -> None:
    await asyncio.to_thread(control_plane.kill_apiserver)
    answer = await shell.ask_cache("queue list")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(f"error: --cache: the cache of {control_plane.server} is not in sync for ")
    await asyncio.to_thread(control_plane.start)
    async with asyncio.timeout(_SECONDS):
        while (answer := await shell.ask_cache("queue list")).status:
            assert "is not in sync for " in answer.err
    assert answer == await shell("queue list")
    assert A10 in answer.out
