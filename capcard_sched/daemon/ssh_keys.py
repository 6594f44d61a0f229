"""RSA key pairs for the ssh plugin of Jobs."""

from __future__ import annotations

from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from capcard_sched.controllers.jobs.plugins.job_plugin import KeyPair

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
