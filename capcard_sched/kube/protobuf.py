"""Changes of objects in Kubernetes' protobuf format, in which opaque JSON keeps its bytes.

In a response or patch in JSON, the API server writes opaque parameters compactly. It compares their bytes in immutable
fields, so a patch of an object with other parameters is rejected. An object that is read and written as protobuf has
them as its author wrote them.

A change is itself a message: two messages in a row are one message, in which the last value of a field counts and
lists are joined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
#: The field of the envelope (`runtime.Unknown`) that has the object; its kind comes before it.
_OBJECT: Final = 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}


class ProtobufError(ValueError):
    """A response is not of the expected format."""


def message(number: int, *values: bytes | str) -> bytes:
    """A message with these values of one field, which are texts or messages."""
    return b"".join([_field(number, value.encode() if isinstance(value, str) else value) for value in values])


def changed(body: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """An object in its envelope, changed. Raises ProtobufError."""
    if not body.startswith(_MAGIC):
        raise ProtobufError("the response is not in protobuf")
    parts = [
        _field(number, change(value)) if number == _OBJECT else part
        for number, part, value in _fields(body[len(_MAGIC) :])
    ]
    return _MAGIC + b"".join(parts)


def without(body: bytes, number: int, is_gone: Callable[[bytes], bool]) -> bytes:
    """A message without some values of a field."""
    return b"".join([part for each, part, value in _fields(body) if each != number or not is_gone(value)])


def within(body: bytes, number: int, change: Callable[[bytes], bytes]) -> bytes:
    """A message whose messages in a field are changed."""
    return b"".join([_field(each, change(value)) if each == number else part for each, part, value in _fields(body)])


def has(body: bytes, number: int, text: str) -> bool:
    """Whether a field of a message has this text."""
    return any(each == number and value == text.encode() for each, _, value in _fields(body))


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _fields(body: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Number, encoded field, and value of each field; the value of a number is b"". Raises ProtobufError."""
    at = 0
    while at < len(body):
        began = at
        tag, at = _read_varint(body, at)
        kind, value = tag & 7, b""
        if kind == _VARINT:
            _, at = _read_varint(body, at)
        elif kind == _BYTES:
            length, at = _read_varint(body, at)
            value, at = body[at : at + length], at + length
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:
            raise ProtobufError(f"field {tag >> 3} has the unknown type {kind}")
        if at > len(body):
            raise ProtobufError(f"field {tag >> 3} is cut off")
        yield tag >> 3, body[began:at], value


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(body):
        byte = body[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
    raise ProtobufError("a number is cut off")
