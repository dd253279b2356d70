"""Requests that ask for too much, come too slowly or are malformed: one line each, and nothing is read beyond it."""

import asyncio
import json

import pytest

from bertjax.runtime.errors import UserError
from bertjax.serving.limits import Limits, Refused, body_of, texts_of

LIMITS = Limits(body_bytes=100, texts=3, characters=10)
FORM = '{"texts": ["a text", ...]}'


@pytest.mark.parametrize(
    "body, status, complaint",
    [
        (b"{", 400, "the body is not JSON (Expecting property name"),
        (b"\xff\xfe\x00", 400, "the body is not JSON ("),
        (b"[" * 100_000, 400, "the body is nested too deeply; send "),
        (b"1" * 10_000, 400, "the body is not JSON (Exceeds the limit"),
        (b"[]", 422, f"the body is not an object with a list of texts; send {FORM}"),
        (b'{"texts": []}', 422, "the body is not an object with a list of texts"),
        (b'{"texts": "abc"}', 422, "the body is not an object with a list of texts"),
        (b'{"texts": ["a"], "top": 3}', 422, "the body has the key 'top', which has no effect; send "),
        (b'{"texts": ["a", 1]}', 422, f"texts[1] has another form; send {FORM}"),
        (b'{"texts": [null]}', 422, "texts[0] has another form"),
        (b'{"texts": [["a", "b"]]}', 422, "texts[0] has another form"),
        (b'{"texts": ["a", " \\n"]}', 422, "texts[1] is blank; leave it out"),
        (b'{"texts": ["a", "a", "a", "a"]}', 422, "4 texts are more than 3; send several requests"),
        (b'{"texts": ["12345678901"]}', 422, "texts[0] has 11 characters, more than 10; cut it"),
        (b'{"texts": ["\\ud800"]}', 422, "texts[0] has half of a surrogate pair"),
    ],
)
def test_a_bad_body_is_refused_in_one_line(body, status, complaint):
    with pytest.raises(Refused) as refused:
        texts_of(body, 1, LIMITS)
    message = str(refused.value)
    assert refused.value.status == status and message.startswith(complaint)
    assert "\n" not in message and len(message) < 400


def test_texts_and_pairs():
    assert texts_of('{"texts": ["ü", "b\\u0000"]}'.encode(), 1, LIMITS) == ["ü", "b\0"]
    assert texts_of(b'{"texts": [["a", "b"]]}', 2, LIMITS) == [["a", "b"]]
    for bad in (["a"], [["a"]], [["a", "b", "c"]], [["a", 1]]):
        with pytest.raises(Refused, match=r"texts\[0\] has another form; send .*its pair"):
            texts_of(json.dumps({"texts": bad}).encode(), 2, LIMITS)
    with pytest.raises(Refused, match="texts.0. has 12 characters, more than 10"):
        texts_of(b'{"texts": [["123456", "123456"]]}', 2, LIMITS)


class Chunks:
    """Yields the same bytes without an end, and counts how often."""

    def __init__(self, part: bytes):
        self.part, self.count = part, 0

    def __aiter__(self):
        return self

    async def __anext__(self) -> bytes:
        self.count += 1
        await asyncio.sleep(0)
        return self.part


def test_an_endless_body_is_read_up_to_the_limit_and_a_little_more():
    """So that a client that sends a little too much reads the answer."""
    chunks = Chunks(b"x" * 3000)
    with pytest.raises(Refused, match="the body has more than 100 bytes; send fewer texts") as refused:
        asyncio.run(body_of(None, chunks, LIMITS))
    assert refused.value.status == 413 and refused.value.closes and chunks.count == (100 + (16 << 20)) // 3000 + 1


@pytest.mark.parametrize("size", [100, 101])
def test_a_body_may_be_as_long_as_the_limit(size):
    async def whole():
        yield b"x" * 60
        yield b"y" * (size - 60)

    if size == 100:
        assert asyncio.run(body_of("100", whole(), LIMITS)) == b"x" * 60 + b"y" * 40
        return
    with pytest.raises(Refused, match="more than 100 bytes") as refused:
        asyncio.run(body_of("101", whole(), LIMITS))
    assert refused.value.status == 413 and not refused.value.closes  # all of it was read


def test_a_body_that_never_ends_is_refused_in_time():
    async def silent():
        yield b"x"
        await asyncio.Event().wait()

    limits = Limits(seconds=0.01)
    with pytest.raises(Refused, match="the body did not arrive in 0.01 seconds") as refused:
        asyncio.run(body_of(None, silent(), limits))
    assert refused.value.status == 408 and refused.value.closes


def test_a_limit_is_above_0():
    with pytest.raises(UserError, match="--max-body-bytes=0 must be above 0; the default is 262144"):
        Limits(body_bytes=0)
    for seconds in (float("inf"), 1e30):
        with pytest.raises(UserError, match=r"--max-seconds=.* must be at most 86400, a day"):
            Limits(seconds=seconds)
