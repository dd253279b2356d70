"""Batches of concurrent requests: texts wait in one queue, and each free worker takes those that fit together.

No worker waits for more texts. While all workers compute, texts queue up, and the next free worker takes several of
them: batches grow with the load, and a lone request is computed at once (continuous batching, as in Orca, Yu et al.,
2022, OSDI, section 3.1, at the granularity of a call).

A batch saves the fixed part of a call, mostly the reading of the weights, and costs padding and waiting. For MiniLM in
int8 on a core with AVX2 the fixed part is 0.8 ms, as much as five tokens. A batch is therefore worth it for short texts
of about the same length, and beyond some 64 tokens it only makes its texts wait for each other.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

Compute = Callable[[list[Any]], list[Any]]

# Lengths in one batch differ by at most this factor.
_LONGEST_TO_SHORTEST = 1.25
# Maximum length of a batch of several texts, padding included: in bytes of UTF-8, about 64 tokens.
_MOST_LENGTH = 300


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
    length: int
    place: int
    request: _Request


class Batcher:
    """Computes texts of many requests in batches; an asynchronous context manager.

    Args:
      compute: returns one answer per text; called in a thread, at most `workers` calls at a time.
      workers: number of threads.
      most_texts: maximum texts per batch.
      most_waiting: maximum texts in the queue, those in computation not counted.
      length_of: returns a text's length, which only needs to be about proportional to its tokens, in bytes of UTF-8.
      on_batch: called with the size of each batch.
    """

    def __init__(
        self,
        compute: Compute,
        workers: int,
        most_texts: int,
        most_waiting: int,
        length_of: Callable[[Any], int],
        on_batch: Callable[[int], object] = lambda size: None,
    ):
        self._compute, self._length_of, self._on_batch = compute, length_of, on_batch
        self._most_texts, self._most_waiting = most_texts, most_waiting
        self._workers = self._idle = workers
        self._queue: list[_Waiting] = []
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
        self._queue += [_Waiting(text, self._length_of(text), place, request) for place, text in enumerate(texts)]
        self._has_work.set()
        try:
            return await request.done
        finally:
            if request.missing:  # a batch of it failed, or the client has left: its other texts take no room
                self._queue = [waiting for waiting in self._queue if waiting.request is not request]

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._has_work.wait()
            batch = self._taken()
            if not batch:
                continue
            self._on_batch(len(batch))
            self._idle -= 1
            try:
                answers = await loop.run_in_executor(self._pool, self._compute, [waiting.text for waiting in batch])
            except Exception as error:  # a request must not end the worker
                for waiting in batch:
                    waiting.request.fail(error)
                continue
            finally:
                self._idle += 1
            for waiting, answer in zip(batch, answers, strict=True):
                waiting.request.answer(waiting.place, answer)

    def _taken(self) -> list[_Waiting]:
        """Take the text that has waited longest, and others of about its length; drop those of ended requests."""
        # A request may have ended, and `submit` has not yet removed its texts.
        queue = [waiting for waiting in self._queue if not waiting.request.done.done()]
        # Idle workers share what waits. Otherwise one computes the texts of two clients while the other idles. Both
        # clients then get their answers at the same time, ask again at the same time, and share a batch for ever.
        most = min(self._most_texts, -(-len(queue) // self._idle))
        batch = _together(queue, most)
        taken = {(id(waiting.request), waiting.place) for waiting in batch}
        self._queue = [waiting for waiting in queue if (id(waiting.request), waiting.place) not in taken]
        if not self._queue:
            self._has_work.clear()
        return batch


def _together(queue: Sequence[_Waiting], most: int) -> list[_Waiting]:
    """Return the first text and up to `most - 1` others, the nearest in length first, that are worth one call."""
    batch = list(queue[:1])
    for waiting in sorted(queue[1:], key=lambda waiting: abs(waiting.length - queue[0].length)):
        lengths = [one.length for one in (*batch, waiting)]
        is_uneven = max(lengths) > _LONGEST_TO_SHORTEST * min(lengths)
        if len(batch) >= most or is_uneven or max(lengths) * len(lengths) > _MOST_LENGTH:
            break
        batch.append(waiting)
    return batch
