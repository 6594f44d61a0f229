"""RSA key pairs for the ssh plugin of Jobs."""

from __future__ import annotations

import asyncio
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from capcard_sched.controllers.jobs.plugins.job_plugin import KeyPair
from capcard_sched.kube.controllers.controller_loop import NotReadyError

_BITS: Final = 2048
_EXPONENT: Final = 65537


def new_key_pair() -> KeyPair:
    """A fresh pair: the private key as PEM, the public one as a line of `authorized_keys`. Takes about 0.1 s."""
    key = rsa.generate_private_key(_EXPONENT, _BITS)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return KeyPair(private.decode(), f"{public.decode()}\n")


class KeyPool:
    """Key pairs that are made in a thread: the event loop, which renews the Lease, does not wait for them."""

    def __init__(self) -> None:
        self._ready: list[KeyPair] = []

    def take(self) -> KeyPair:
        """A pair that is used once. Raises NotReadyError."""
        if not self._ready:
            raise NotReadyError(self._make)
        return self._ready.pop()

    async def _make(self) -> None:
        self._ready.append(await asyncio.to_thread(new_key_pair))
