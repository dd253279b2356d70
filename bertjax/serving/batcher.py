"""Batches of concurrent requests: texts wait in one queue, and each free worker takes the first of them.

No worker waits for more texts. While all workers compute, texts queue up, and the next free worker takes them
together: batches grow with the load, and a lone request is computed at once (continuous batching, as in Orca, Yu et
al., 2022, OSDI, section 3.1, at the granularity of a call).
"""

import asyncio
import collections
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

Compute = Callable[[list[Any]], list[Any]]


class Full(Exception):
    """The queue has no room for a request."""


class _Request:
    """Answers of one request, which several batches may compute.

    Attributes:
      done: resolved when all answers are there, or one batch has failed.
    """

    def __init__(self, size: int):
        self.answers: list[Any] = [None] * size
        self.missing = size
        self.done = asyncio.get_running_loop().create_future()

    def answer(self, place: int, answer: Any) -> None:
        self.answers[place] = answer
        self.missing -= 1
        if not self.missing and not self.done.done():
            self.done.set_result(self.answers)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class _Waiting(NamedTuple):
    text: Any
    place: int
    request: _Request


class Batcher:
    """Computes texts of many requests in batches; an asynchronous context manager.

    Args:
      compute: returns one answer per text; called in a thread, at most `workers` calls at a time.
      workers: number of threads.
      most_texts: maximum texts per batch.
      most_waiting: maximum texts in the queue, those in computation not counted.
      on_batch: called with the size of each batch.
    """

    def __init__(
        self,
        compute: Compute,
        workers: int,
        most_texts: int,
        most_waiting: int,
        on_batch: Callable[[int], object] = lambda size: None,
    ):
        self._compute, self._on_batch = compute, on_batch
        self._most_texts, self._most_waiting = most_texts, most_waiting
        self._workers = workers
        self._queue: collections.deque[_Waiting] = collections.deque()
        self._has_work = asyncio.Event()
        self._tasks: list[asyncio.Task] = []

    @property
    def waiting(self) -> int:
        """Number of texts in the queue."""
        return len(self._queue)

    async def __aenter__(self) -> "Batcher":
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="compute")
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def submit(self, texts: Sequence[Any]) -> list[Any]:
        """Return the answers of a request, in order.

        Raises:
          Full: the queue has no room for all of its texts; nothing was queued.
          Exception: what `compute` raised for a batch with a text of the request.
        """
        if len(self._queue) + len(texts) > self._most_waiting:
            raise Full
        request = _Request(len(texts))
        self._queue.extend(_Waiting(text, place, request) for place, text in enumerate(texts))
        self._has_work.set()
        try:
            return await request.done
        finally:
            if request.missing:  # a batch of it failed, or the client has left: its other texts take no room
                self._queue = collections.deque(waiting for waiting in self._queue if waiting.request is not request)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._has_work.wait()
            batch = self._taken()
            if not batch:
                continue
            self._on_batch(len(batch))
            try:
                answers = await loop.run_in_executor(self._pool, self._compute, [waiting.text for waiting in batch])
            except Exception as error:  # a request must not end the worker
                for waiting in batch:
                    waiting.request.fail(error)
                continue
            for waiting, answer in zip(batch, answers, strict=True):
                waiting.request.answer(waiting.place, answer)

    def _taken(self) -> list[_Waiting]:
        """Take the texts that have waited longest; those of requests that have ended are dropped."""
        batch: list[_Waiting] = []
        while self._queue and len(batch) < self._most_texts:
            waiting = self._queue.popleft()
            if not waiting.request.done.done():  # it has ended, and `submit` has not yet removed its texts
                batch.append(waiting)
        if not self._queue:
            self._has_work.clear()
        return batch
