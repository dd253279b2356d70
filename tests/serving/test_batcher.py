"""Batches of concurrent requests: what fits together is computed together, and one failure stays in its batch."""

import asyncio
import threading

import pytest

from bertjax.serving.batcher import Batcher, Full
from tests.waiting import LIMIT_SECONDS


class Gate:
    """Doubles numbers when it is opened, and keeps the batches that it got."""

    def __init__(self, is_open: bool = True):
        self.batches: list[list[int]] = []
        self.started, self._open = threading.Semaphore(0), threading.Event()
        if is_open:
            self._open.set()

    def open(self) -> None:
        self._open.set()

    def __call__(self, numbers: list[int]) -> list[int]:
        self.batches.append(numbers)
        self.started.release()
        assert self._open.wait(LIMIT_SECONDS)
        if -1 in numbers:
            raise ValueError("a bad number")
        return [2 * number for number in numbers]


def one(number: int) -> int:
    """A length that all numbers share."""
    return 1


async def busy(batcher: Batcher, gate: Gate, number: int) -> asyncio.Task:
    """Submit a number and return once a worker computes it."""
    task = asyncio.create_task(batcher.submit([number]))
    await asyncio.to_thread(gate.started.acquire)
    return task


def test_idle_workers_share_what_waits():
    """Two clients that ask at the same time are computed at the same time, not one after the other on one core."""

    async def run() -> None:
        gate = Gate()
        async with Batcher(gate, workers=2, most_texts=8, most_waiting=8, length_of=one) as batcher:
            for _ in range(3):
                assert await asyncio.gather(batcher.submit([1]), batcher.submit([2])) == [[2], [4]]
        assert sorted(gate.batches) == [[1]] * 3 + [[2]] * 3

    asyncio.run(run())


def test_a_full_queue_refuses_the_whole_request():
    async def run() -> None:
        gate = Gate(is_open=False)
        async with Batcher(gate, workers=1, most_texts=4, most_waiting=2, length_of=one) as batcher:
            first = await busy(batcher, gate, 1)
            waiting = asyncio.create_task(batcher.submit([2]))
            await asyncio.sleep(0)
            with pytest.raises(Full):
                await batcher.submit([3, 4])
            assert batcher.waiting == 1
            gate.open()
            assert await first == [2] and await waiting == [4]

    asyncio.run(run())


def test_a_failure_reaches_the_requests_of_its_batch_only():
    async def run() -> None:
        gate = Gate(is_open=False)
        async with Batcher(gate, workers=1, most_texts=2, most_waiting=10, length_of=one) as batcher:
            first = await busy(batcher, gate, 1)
            long, short, next_one = (asyncio.create_task(batcher.submit(n)) for n in ([2, -1, 3], [4], [5]))
            await asyncio.sleep(0)
            gate.open()
            assert await first == [2]
            with pytest.raises(ValueError, match="a bad number"):
                await long
            assert await short == [8] and await next_one == [10]
        assert gate.batches == [[1], [2, -1], [4, 5]]  # the rest of the failed request is not computed

    asyncio.run(run())
