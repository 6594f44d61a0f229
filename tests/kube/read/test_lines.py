"""Streams cut into lines, wherever their pieces end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.kube.decode import LineBuffer


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=12), st.data())
def test_lines_come_out_whole_wherever_the_stream_is_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    buffer, out = LineBuffer(), b""
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        whole = buffer.feed(stream[start:end])
        assert not whole or whole.endswith(b"\n")
        out += whole
        assert len(out) + buffer.pending == end
    assert out == stream
    assert buffer.pending == 0


@pytest.mark.parametrize(
    "pieces, whole, pending",
    [
        ([b""], [b""], 0),
        ([b"\n"], [b"\n"], 0),
        ([b"a"], [b""], 1),
        ([b"a", b"b\nc"], [b"", b"ab\n"], 1),
        ([b"a\nb\nc", b"\n"], [b"a\nb\n", b"c\n"], 0),
    ],
)
def test_complete_lines_are_returned_at_once(pieces: list[bytes], whole: list[bytes], pending: int) -> None:
    buffer = LineBuffer()
    assert [buffer.feed(piece) for piece in pieces] == whole
    assert buffer.pending == pending


def test_a_line_without_end_is_given_up() -> None:
    buffer = LineBuffer(longest=100)
    buffer.feed(b"x" * 100)
    with pytest.raises(ValueError, match="a line of more than 100 bytes"):
        buffer.feed(b"x")
