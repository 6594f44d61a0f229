"""An asynchronous generator is computed step by step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import closing

import pytest

from capcard_sched.cli.sources.live import stepped


async def _numbers(log: list[str], stop: int) -> AsyncGenerator[int]:
    try:
        for number in range(3):
            if number == stop:
                raise ValueError(f"{number}")
            log.append(f"made {number}")
            await asyncio.sleep(0)
            yield number
    finally:
        log.append("closed")


def test_an_item_is_computed_when_it_is_wanted() -> None:
    log: list[str] = []
    for number in stepped(_numbers(log, -1)):
        log += [f"got {number}"]
    assert log == ["made 0", "got 0", "made 1", "got 1", "made 2", "got 2", "closed"]


def test_the_generator_is_closed_with_its_reader() -> None:
    log: list[str] = []
    with closing(stepped(_numbers(log, -1))) as numbers:
        assert next(numbers) == 0
    assert log == ["made 0", "closed"]


def test_an_error_passes_after_the_items_before_it() -> None:
    log: list[str] = []
    numbers = stepped(_numbers(log, 1))
    assert next(numbers) == 0
    with pytest.raises(ValueError, match="1"):
        next(numbers)
    assert log == ["made 0", "closed"]
