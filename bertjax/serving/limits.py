"""Limits of the server, and the reading of request bodies within them."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

from bertjax.runtime.errors import UserError, cut_text, printable

# Bytes of a body that are read and dropped beyond the limit. If a connection is closed with unread bytes, the kernel
# resets it, and a client that sends first and reads then loses the answer with the reason (RFC 9112, section 9.6).
_DISCARDED = 16 << 20
_DAY = 86_400


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may ask for.

    Attributes:
      body_bytes: maximum size of a body.
      texts: maximum texts of a request.
      characters: maximum characters of a text; more tokens than the model reads are cut, not refused.
      waiting: maximum texts in the queue.
      connections: maximum open connections; further ones are answered with 503 and closed.
      seconds: maximum time in which a client sends its header, again its body, and reads an answer; a day at most.
    """

    body_bytes: int = 1 << 18
    texts: int = 64
    characters: int = 10_000
    waiting: int = 512
    connections: int = 256
    seconds: float = 10.0

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if not getattr(self, field.name) > 0:
                flag = f"--max-{field.name.replace('_', '-')}"
                raise UserError(f"{flag}={getattr(self, field.name)} must be above 0; the default is {field.default}")
        if self.seconds > _DAY:
            raise UserError(f"--max-seconds={self.seconds:g} must be at most {_DAY}, a day")


class Refused(Exception):
    """A request that is answered with an error.

    Attributes:
      status: HTTP status.
      closes: whether the connection must be closed, because a rest of the body may still come.
    """

    def __init__(self, status: int, message: str, closes: bool = False):
        super().__init__(cut_text(printable(message)))
        self.status, self.closes = status, closes


async def body_of(length: str | None, chunks: AsyncIterator[bytes], limits: Limits) -> bytes:
    """Return a request's body.

    Args:
      length: the header Content-Length, if there is one.
      chunks: the body in parts.
      limits: the limits.

    Raises:
      Refused: it is too large (413) or comes too slowly (408).
    """
    most, last = limits.body_bytes, limits.body_bytes + _DISCARDED
    error = f"the body has more than {most:,} bytes; send fewer texts"
    # Before anything is read: the HTTP parser has checked that it is a number.
    if length is not None and int(length) > last:
        raise Refused(413, error, closes=True)
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.seconds):
            async for part in chunks:
                size += len(part)
                if size > last:
                    raise Refused(413, error, closes=True)
                parts.append(part) if size <= most else parts.clear()
    except TimeoutError:
        raise Refused(408, f"the body did not arrive in {limits.seconds:g} seconds", closes=True) from None
    if size > most:
        raise Refused(413, error)
    return b"".join(parts)


def texts_of(body: bytes, fields: int, limits: Limits) -> list[Any]:
    """Return the texts of a request, each a text or a list of two texts.

    Args:
      body: JSON.
      fields: 1 for a model of single texts, 2 for pairs.
      limits: the limits.

    Raises:
      Refused: the body is not JSON (400), or not a list of texts within the limits (422).
    """
    form = '{"texts": ["a text", ...]}' if fields == 1 else '{"texts": [["a text", "its pair"], ...]}'
    try:
        value = json.loads(body)
    except RecursionError:
        raise Refused(400, f"the body is nested too deeply; send {form}") from None
    except ValueError as error:  # also other encodings than UTF-8, and numbers of thousands of digits
        raise Refused(400, f"the body is not JSON ({error}); send {form}") from None
    texts = value.get("texts") if isinstance(value, dict) else None
    if others := [key for key in value if key != "texts"] if texts is not None else []:
        raise Refused(422, f"the body has the key {others[0]!r}, which has no effect; send {form}")
    if not isinstance(texts, list) or not texts:
        raise Refused(422, f"the body is not an object with a list of texts; send {form}")
    if len(texts) > limits.texts:
        raise Refused(422, f"{len(texts):,} texts are more than {limits.texts:,}; send several requests")
    if len(texts) > limits.waiting:
        raise Refused(422, f"{len(texts):,} texts do not fit into a queue of {limits.waiting:,}; send several requests")
    for number, text in enumerate(texts):
        parts = [text] if fields == 1 else text
        if not isinstance(parts, list) or len(parts) != fields or not all(isinstance(part, str) for part in parts):
            raise Refused(422, f"texts[{number}] has another form; send {form}")
        if any(not part.strip() for part in parts):
            raise Refused(422, f"texts[{number}] is blank; leave it out")
        if (size := sum(map(len, parts))) > limits.characters:
            raise Refused(422, f"texts[{number}] has {size:,} characters, more than {limits.characters:,}; cut it")
        try:
            for part in parts:
                part.encode()
        except UnicodeEncodeError:
            raise Refused(422, f"texts[{number}] has half of a surrogate pair; send text in UTF-8") from None
    return texts
