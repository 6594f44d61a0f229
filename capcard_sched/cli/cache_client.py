"""The client of a cache in a reading verb: it passes its command line and its streams to the cache.

Imports the least: the response takes less time than the imports of a verb.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import TYPE_CHECKING, Final

from capcard_sched.cli.output import put_error

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Path of the socket, for every reading verb without --cache.
VARIABLE: Final = "CAPCARD_SCHED_CACHE"
FLAG: Final = "--cache"
#: Number of bytes of a request, before it.
LENGTH: Final = struct.Struct("!Q")
#: First byte of a reply: an exit status follows; an error text follows; the client is to run the verb itself.
STATUS, ERROR, DECLINED = b"=", b"!", b"-"
#: Separates the fields of a request; no argument and no variable contains it.
SEPARATOR: Final = b"\0"
#: Verbs of one word that read a cluster, and lists.
_VERBS: Final = frozenset({"explain", "snapshot", "what-if", "__complete"})
_LISTS: Final = frozenset({"job", "queue", "card", "node", "pod"})
_HELP: Final = frozenset({"-h", "--help", "--version"})
#: pid, uid, gid of SO_PEERCRED.
_CREDENTIALS: Final = struct.Struct("3i")


class CacheError(Exception):
    """No cache listens at a path; the text is for users."""


def answer_by_cache(arguments: Sequence[str]) -> int | None:
    """Pass a command line to the cache that is named. Returns its exit status; None: this process runs the verb.

    That is so without a cache at the path, too: only the whole command line shows whether it needs one.
    """
    reads = bool(arguments) and (arguments[0] in _VERBS or (arguments[0] in _LISTS and "list" in arguments[1:2]))
    path = _path(arguments) if reads and _HELP.isdisjoint(arguments) else ""
    if not path:
        return None
    try:
        request = _request(arguments)
        connection = connect(path)
    except (CacheError, OSError):  # without a working directory, too
        return None
    try:
        with connection:
            return _ask(connection, path, request)
    except KeyboardInterrupt:
        return 130


def _path(arguments: Sequence[str]) -> str:
    for number, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name == FLAG:
            return value if equals else "".join(arguments[number + 1 : number + 2])
    return os.environ.get(VARIABLE, "")


def connect(path: str) -> socket.socket:
    """A connection to the cache at a path. Raises CacheError."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
        uid = peer_uid(connection)
    except OSError as error:
        connection.close()
        reason = "no cache listens there" if isinstance(error, ConnectionRefusedError) else error.strerror or str(error)
        raise CacheError(f"{path}: {reason}; `capcard-sched cache --socket {path}` starts one") from None
    if uid != os.getuid():
        connection.close()
        raise CacheError(f"{path}: the cache belongs to another user, uid {uid}")
    return connection


def peer_uid(connection: socket.socket) -> int:
    """The user of the process at the other end. Raises OSError."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(found)[1]
    return uid


def _request(arguments: Sequence[str]) -> bytes:
    """The umask, the working directory, the number of arguments, the arguments, the variables. Raises OSError."""
    umask = os.umask(0o077)
    os.umask(umask)
    words = map(os.fsencode, (str(umask), os.getcwd(), str(len(arguments)), *arguments))  # noqa: PTH109 - pathlib is an import
    return SEPARATOR.join((*words, *(name + b"=" + value for name, value in os.environb.items())))


def _ask(connection: socket.socket, path: str, request: bytes) -> int | None:
    """Pass a request with the streams of this process; the exit status, or None for a request that is declined."""
    reply = b""
    with contextlib.suppress(OSError):  # the reason is the reply
        socket.send_fds(connection, [LENGTH.pack(len(request))], [0, 1, 2])
        connection.sendall(request)
    with contextlib.suppress(OSError):
        while part := connection.recv(4096):
            reply += part
    if reply[:1] == DECLINED:
        return None
    if reply[:1] == STATUS:
        return int(reply[1:])
    text = reply[1:].decode("utf-8", "replace") or "its process for this request ended without a response"
    put_error(f"error: {FLAG}: {path}: {text}")
    return 1
