"""A PostgreSQL server for tests: on a socket in a temporary folder, without a port."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

#: A server does not run as root; Debian's package has this user.
_USER = "postgres"
_MADE = count()


class NoPostgresError(Exception):
    """There is no server here; the text names the remedy."""


def _programs() -> Path:
    found = [Path(path).parent for path in [shutil.which("initdb")] if path and (Path(path).parent / "pg_ctl").exists()]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in found:
        if all((folder / name).exists() for name in ("initdb", "postgres", "pg_ctl")):
            return folder
    raise NoPostgresError("no PostgreSQL found: run `make packages`")


@contextmanager
def server() -> Iterator[Path]:
    """A running server; yields the folder of its socket. Raises NoPostgresError."""
    programs, user = _programs(), _USER if os.geteuid() == 0 else None
    # A path of a socket has 107 bytes at most: pytest's folders are longer.
    folder = Path(tempfile.mkdtemp(prefix="capcard-postgres-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        data = folder / "data"

        def run(program: str, *arguments: object) -> None:
            command = [str(programs / program), "-D", str(data), *map(str, arguments)]
            with (folder / "output").open("a+") as output:
                done = subprocess.run(
                    command, user=user, cwd=folder, stdout=output, stderr=output, stdin=subprocess.DEVNULL, check=False
                )
                output.seek(0)
                if done.returncode:
                    raise NoPostgresError(f"PostgreSQL does not start: {output.read()[-2000:]}")

        run("initdb", "-U", _USER, "-A", "trust", "-N")
        options = f"-k {folder} -c listen_addresses= -c fsync=off -c max_connections=20"
        run("pg_ctl", "-o", options, "-l", folder / "log", "-w", "-t", 60, "start")
        try:
            yield folder
        finally:
            run("pg_ctl", "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_database(folder: Path) -> str:
    """The URL of a new database of the server."""
    import psycopg

    name = f"ledger{next(_MADE)}"
    with psycopg.connect(f"postgresql://{_USER}@/postgres?host={folder}", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"postgresql://{_USER}@/{name}?host={folder}"
