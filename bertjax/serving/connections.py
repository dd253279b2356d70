"""Connections of the server: how many are open, and how long each may make the server wait.

uvicorn limits requests, not connections, and the time between two requests only. A client that sends its header or a
body that nobody reads byte by byte, or that does not read its answers, would keep a connection for ever.
"""

import asyncio
import http
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertjax.runtime.errors import UserError, json_text, printable, reason, say
from bertjax.serving.limits import Limits

# Connections that the kernel holds until they are accepted. asyncio accepts up to this many before it serves one.
BACKLOG = 128
# Open files beside the connections: those that are accepted and not yet refused in up to four turns of the event loop,
# and those of the process itself.
_OTHER_FILES = 4 * BACKLOG + 64
# Time between two lines of the log about connections.
_QUIET_SECONDS = 10.0


def protocol_of(limits: Limits, on_refused: Callable[[int], object]) -> type[H11Protocol]:
    """Return uvicorn's HTTP protocol within limits of connections and seconds.

    A connection beyond the limit is answered with 503 before anything is read. Others are cut off if, within
    `limits.seconds`, a header that has begun, or the rest of a body whose answer is sent, does not end, or the client
    does not take an answer. `limits.body_of` does the same for a body that is read.

    Args:
      limits: the limits.
      on_refused: called with the status of each answer that the application does not see: 503 as above, and 400 for
        what is not HTTP/1.1.
    """

    class Protocol(H11Protocol):
        _late: asyncio.TimerHandle | None = None  # for what the client sends
        _stuck: asyncio.TimerHandle | None = None  # for what it reads

        def connection_made(self, transport: asyncio.Transport) -> None:
            if len(self.connections) >= limits.connections:
                self.transport = transport
                self._refuse(503, f"{limits.connections:,} connections are open; try again later")
                return
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=0)  # `pause_writing` as soon as the kernel takes no more
            self._late = self.loop.call_later(limits.seconds, transport.abort)

        def data_received(self, data: bytes) -> None:
            if self.flow is None:  # refused
                return
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def _watch(self) -> None:
            """Start the clock when something has begun that must end, and stop it at its end."""
            theirs = self.conn.their_state
            is_header = theirs is h11.IDLE and bool(self.conn.trailing_data[0])
            is_left = theirs is h11.SEND_BODY and self.conn.our_state is h11.DONE
            if is_header or is_left:
                self._late = self._late or self.loop.call_later(limits.seconds, self.transport.abort)
            elif theirs is not h11.IDLE or self.cycle is not None:  # not before the first request
                self._late = _stopped(self._late)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stuck = self._stuck or self.loop.call_later(limits.seconds, self._drop)

        def _drop(self) -> None:
            """Close, and forget what the kernel still holds for the client, which may be megabytes."""
            linger = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.transport.abort()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stuck = _stopped(self._stuck)

        def send_400_response(self, msg: str) -> None:
            if self.cycle is not None:  # its task must not answer as well
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self._refuse(400, "the request is not HTTP/1.1")
            else:  # the answer is on its way already
                self.transport.close()

        def _refuse(self, status: int, message: str) -> None:
            """Answer and close, whatever has been read."""
            on_refused(status)
            body = json_text({"error": message}).encode() + b"\n"
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            answer = h11.Response(status_code=status, headers=headers, reason=http.HTTPStatus(status).phrase.encode())
            for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            self._late, self._stuck = _stopped(self._late), _stopped(self._stuck)
            super().connection_lost(exc)

    return Protocol


def _stopped(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def check_open_files(limits: Limits) -> None:
    """Raise the number of files that this process may open to what its connections need.

    Raises:
      UserError: the system does not allow that many.
    """
    try:
        import resource
    except ImportError:  # only Unix has such a limit
        return
    needed = limits.connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UserError(
            f"--max-connections={limits.connections} needs {needed} open files of {hard}; lower it, or raise ulimit -n"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class Complaints:
    """An exception handler of the event loop that prints one line, and then none for a while.

    asyncio's own prints a traceback for each connection that fails, and clients can make them fail.
    """

    def __init__(self):
        self._last = -_QUIET_SECONDS

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if (now := time.monotonic()) - self._last < _QUIET_SECONDS:
            return
        self._last = now
        error = context.get("exception")
        why = f": {type(error).__name__}: {reason(error)}" if error else ""
        say(f"serve: {printable(str(context.get('message')) + why)}", file=sys.stderr, flush=True)
