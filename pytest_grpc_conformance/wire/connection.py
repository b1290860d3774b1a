"""One raw HTTP/2 connection: send any octets at any time, and wait, always with a deadline, for what comes back.

Nothing is read, acknowledged or granted while a case does not wait: a case that does not wait is a client that
does not read.
"""

from __future__ import annotations

import contextlib
import functools
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from hpack import Encoder
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, PingFrame, SettingsFrame, WindowUpdateFrame

from pytest_grpc_conformance.transcript import Transcript
from pytest_grpc_conformance.wire.answer import Answer
from pytest_grpc_conformance.wire.frames import (
    DEFAULT_MAX_FRAME,
    DEFAULT_WINDOW,
    PREFACE,
    Flag,
    Kind,
    Setting,
    error_name,
    frame,
    message,
    padded,
    settings_payload,
)
from pytest_grpc_conformance.wire.receiving import Misframed, Receiver

T = TypeVar("T")
Fields = Sequence[tuple[str | bytes, str | bytes]]
CHUNK = 65_536


class WireSilence(TimeoutError):
    """What was waited for did not come: not in time, or never, as the connection has ended. The message says which,
    and what had come."""


def request_fields(
    path: str, *, metadata: Fields = (), timeout: str | None = None
) -> list[tuple[str | bytes, str | bytes]]:
    """The fields of a plain gRPC request (gRPC over HTTP/2, "Requests"); ``timeout`` is ``grpc-timeout``."""
    fields: list[tuple[str | bytes, str | bytes]] = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]
    if timeout is not None:
        fields.append(("grpc-timeout", timeout))
    return [*fields, *metadata]


def open_socket(address: str, timeout: float) -> socket.socket:
    """A connected socket to ``host:port``, ``[v6]:port`` or ``unix:path``."""
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        connection.connect(address.removeprefix("unix:"))
        return connection
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class RawConnection:
    """A connection that begins with the preface and SETTINGS, and from then on does what it is told.

    ``settings`` are sent first. ``preface=False`` sends nothing at all. ``acknowledges``: SETTINGS and PING are
    acknowledged. ``grants``: the windows are refilled for all DATA that comes.
    """

    def __init__(
        self,
        address: str,
        transcript: Transcript,
        *,
        timeout: float,
        label: str = "raw",
        settings: Mapping[int, int] | None = None,
        preface: bool = True,
        acknowledges: bool = True,
        grants: bool = True,
    ) -> None:
        self.timeout = timeout
        self.acknowledges = acknowledges
        self.grants = grants
        self.encoder = Encoder()
        self.closed = ""
        """How the connection has ended; empty while it stands."""
        settings = dict(settings or {})
        self.received = Receiver(
            max_frame=max(DEFAULT_MAX_FRAME, settings.get(Setting.MAX_FRAME_SIZE, 0)),
            table_size=settings.get(Setting.HEADER_TABLE_SIZE, 4096),
        )
        self._deaf = False
        self._unsent: list[bytes] = []
        self._transcript = transcript
        self._label = label
        self._next_stream = 1
        self._window = DEFAULT_WINDOW
        self._stream_windows: dict[int, int] = {}
        self._initial_window = DEFAULT_WINDOW
        self._socket = open_socket(address, timeout)
        self._socket.setblocking(False)
        if preface:
            self.send(
                PREFACE + frame(Kind.SETTINGS, payload=settings_payload(settings)), f"preface, SETTINGS {settings}"
            )

    @property
    def local_port(self) -> int:
        """The client's port (TCP only)."""
        port: int = self._socket.getsockname()[1]
        return port

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Sending.

    def send(self, octets: bytes, words: str | None = None) -> None:
        """Send octets as they are. A connection that the server has ended swallows them; see ``closed``.

        Raises ``WireSilence`` when the server does not read on for the whole timeout.
        """
        self._note("client", words or f"{len(octets)} octets {octets[:24].hex(' ')}")
        self._unsent.append(octets)
        if len(self._unsent) > 1:
            return  # A reaction to what was read while something is being sent: it follows that, whole.
        try:
            while self._unsent:
                self._write(self._unsent[0])
                del self._unsent[0]
        finally:
            self._unsent.clear()

    def _write(self, octets: bytes) -> None:
        left = memoryview(octets)
        until = time.monotonic() + self.timeout
        while left and not (self.closed or self._deaf):
            events = self._ready(select.POLLIN | select.POLLOUT, until - time.monotonic())
            writable = bool(events & ~select.POLLIN)
            try:
                if writable:
                    left = left[self._socket.send(left) :]
                    until = time.monotonic() + self.timeout
            except BlockingIOError:
                pass
            except OSError as error:
                self._read_the_rest(f"the connection is gone ({error.strerror})")
            if events == select.POLLIN:
                self._read()
            if left and time.monotonic() >= until:
                raise WireSilence(f"{self._label}: the server reads no more; {len(left)} octets are left to send")

    def frame(
        self, kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"", *, length: int | None = None
    ) -> None:
        """Send one frame, legal or not."""
        name = Kind(kind).name if kind in Kind.__members__.values() else f"type {kind}"
        words = f"{name} stream {stream & 0x7FFFFFFF} flags 0x{flags:02x} {len(payload)} octets {payload[:16].hex(' ')}"
        self.send(frame(kind, flags, stream, payload, length=length), words)

    def block(self, fields: Fields, *, huffman: bool = True) -> bytes:
        """A header block, encoded in this connection's compression state: what is encoded must be sent, in order."""
        return self.encoder.encode([(_octets(name), _octets(value)) for name, value in fields], huffman=huffman)

    def headers(self, stream: int, fields: Fields, *, end_stream: bool = False) -> None:
        """Send a header block, in HEADERS and as many CONTINUATION frames as it needs."""
        block = self.block(fields)
        parts = [block[at : at + DEFAULT_MAX_FRAME] for at in range(0, len(block), DEFAULT_MAX_FRAME)] or [b""]
        first = Flag.END_STREAM if end_stream else Flag.NONE
        octets = b""
        for at, part in enumerate(parts):
            flags = (first if at == 0 else Flag.NONE) | (Flag.END_HEADERS if at == len(parts) - 1 else Flag.NONE)
            octets += frame(Kind.HEADERS if at == 0 else Kind.CONTINUATION, flags, stream, part)
        shown = " ".join(f"{_text(name)}={_text(value)}"[:60] for name, value in fields)
        self.send(octets, f"HEADERS stream {stream} {shown}{' END_STREAM' if end_stream else ''}")

    def data(self, stream: int, payload: bytes, *, end_stream: bool = False) -> None:
        """Send one DATA frame, whatever the windows say."""
        self._window -= len(payload)
        self._stream_windows[stream] = self._stream_windows.get(stream, self._initial_window) - len(payload)
        self.frame(Kind.DATA, Flag.END_STREAM if end_stream else Flag.NONE, stream, payload)

    def padded(self, stream: int, parts: Sequence[bytes], padding: int, *, end_stream: bool = False) -> None:
        """Send one DATA frame for each part, each with ``padding`` octets of padding, whatever the windows say."""
        octets = b""
        for at, part in enumerate(parts, 1):
            flags = Flag.PADDED | (Flag.END_STREAM if end_stream and at == len(parts) else Flag.NONE)
            octets += frame(Kind.DATA, flags, stream, padded(part, padding))
        spent = sum(len(part) + 1 + padding for part in parts)
        self._window -= spent
        self._stream_windows[stream] = self._stream_windows.get(stream, self._initial_window) - spent
        self.send(octets, f"{len(parts)} DATA frames stream {stream}, {spent} octets, each with {padding} of padding")

    def room(self, stream: int) -> int:
        """How many octets of DATA the server's windows allow on a stream now."""
        return min(self._window, self._stream_windows.get(stream, self._initial_window))

    def start(
        self,
        path: str,
        *,
        metadata: Fields = (),
        timeout: str | None = None,
        fields: Fields | None = None,
        end_stream: bool = False,
    ) -> int:
        """Open a stream with request headers (``fields`` replaces all of them); its id."""
        stream = self.new_stream()
        self.headers(
            stream,
            request_fields(path, metadata=metadata, timeout=timeout) if fields is None else fields,
            end_stream=end_stream,
        )
        return stream

    def new_stream(self) -> int:
        """The next unused stream id."""
        stream = self._next_stream
        self._next_stream += 2
        return stream

    def send_message(self, stream: int, payload: bytes, *, flag: int = 0, end_stream: bool = False) -> None:
        """Send one length-prefixed message within the server's windows. Raises ``WireSilence`` if they stay shut."""
        octets = message(payload, flag=flag)
        at = 0
        while at < len(octets):
            room = min(self.room(stream), DEFAULT_MAX_FRAME)
            if room <= 0:
                self.wait(lambda: self.room(stream) > 0 or self.received.ended(stream), "room in the server's window")
                if self.received.ended(stream):
                    return
                continue
            part = octets[at : at + room]
            at += len(part)
            self.data(stream, part, end_stream=end_stream and at == len(octets))
            if self.closed:
                return

    def call(self, path: str, payload: bytes = b"", *, metadata: Fields = (), timeout: str | None = None) -> int:
        """Send a whole request with one message; the stream's id."""
        stream = self.start(path, metadata=metadata, timeout=timeout)
        self.send_message(stream, payload, end_stream=True)
        return stream

    def reset(self, stream: int, code: int = 8) -> None:
        """Send RST_STREAM."""
        self.frame(Kind.RST_STREAM, 0, stream, struct.pack(">I", code))

    def window(self, stream: int, increment: int) -> None:
        """Send WINDOW_UPDATE; stream 0 is the connection."""
        self.frame(Kind.WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))

    def settings(self, values: Mapping[int, int]) -> None:
        """Send SETTINGS."""
        self.frame(Kind.SETTINGS, payload=settings_payload(values))

    def ping(self, payload: bytes = b"conforms") -> None:
        """Send PING."""
        self.frame(Kind.PING, payload=payload)

    def goaway(self, code: int = 0, *, last: int = 0, debug: bytes = b"") -> None:
        """Send GOAWAY."""
        self.frame(Kind.GOAWAY, payload=struct.pack(">II", last, code) + debug)

    # Waiting.

    def wait(self, reached: Callable[[], T | bool | None], what: str, timeout: float | None = None) -> T:
        """Read until ``reached`` gives something true, and give that. Raises ``WireSilence``.

        ``what`` is what is waited for, in words.
        """
        limit = self.timeout if timeout is None else timeout
        until = time.monotonic() + limit
        while True:
            found = reached()
            if found:
                return found  # type: ignore[return-value]
            if self.closed:
                raise WireSilence(f"{self._label}: {self.closed} before {what}; {self._summary()}")
            left = until - time.monotonic()
            if left <= 0:
                raise WireSilence(f"{self._label}: {limit:g} s passed without {what}; {self._summary()}")
            if self._ready(select.POLLIN, left):
                self._read()

    def answer(self, stream: int, timeout: float | None = None) -> Answer:
        """What came on a stream once the server has ended it, or the connection. Raises ``WireSilence``."""
        self.wait(lambda: self.received.ended(stream) or self.closed, f"the end of stream {stream}", timeout)
        return self.so_far(stream)

    def so_far(self, stream: int) -> Answer:
        """What has come on a stream; reads nothing."""
        return self.received.answer(stream, closed=self.closed)

    def unary(self, path: str, payload: bytes = b"", *, metadata: Fields = (), timeout: str | None = None) -> Answer:
        """A whole call with one request message. Raises ``WireSilence``."""
        return self.answer(self.call(path, payload, metadata=metadata, timeout=timeout))

    def wait_headers(self, stream: int) -> Answer:
        """What came on a stream once its first header block is there. Raises ``WireSilence``."""
        self.wait(lambda: self.so_far(stream).blocks, f"headers on stream {stream}")
        return self.so_far(stream)

    def wait_messages(self, stream: int, count: int) -> Answer:
        """What came on a stream once ``count`` messages are there. Raises ``WireSilence``."""
        self.wait(
            lambda: len(self.so_far(stream).messages) >= count or self.received.ended(stream),
            f"message {count} on stream {stream}",
        )
        found = self.so_far(stream)
        if len(found.messages) < count:
            raise WireSilence(f"{self._label}: stream {stream} ended before message {count}: {found}")
        return found

    def fence(self, payload: bytes = b"fencefen") -> None:
        """A PING and its acknowledgement: what the server sent before that has been read. Raises ``WireSilence``."""
        before = self._pongs(payload)
        self.ping(payload)
        self.wait(lambda: self._pongs(payload) > before, "the acknowledgement of a PING")

    def wait_goaway(self) -> GoAwayFrame:
        """The first GOAWAY. Raises ``WireSilence``."""
        return self.wait(self.received.goaways, "GOAWAY")[0]

    def wait_closed(self, timeout: float | None = None) -> str:
        """How the connection ended, once the server has ended it. Raises ``WireSilence``."""
        return self.wait(lambda: self.closed, "the end of the connection", timeout)

    def _pongs(self, payload: bytes) -> int:
        return sum(
            isinstance(f, PingFrame) and "ACK" in f.flags and f.opaque_data == payload for f in self.received.frames
        )

    # Ending.

    def half_close(self) -> None:
        """Send FIN; reading goes on."""
        self._note("client", "FIN")
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        """End the connection by RST, as a host does that crashes."""
        self._note("client", "RST (connection)")
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """Close the socket; legal more than once."""
        if not self.closed:
            self._end("closed by the client")
        self._socket.close()

    # Reading.

    def _ready(self, events: int, timeout: float) -> int:
        """Those of the events that have happened within ``timeout`` seconds, errors included; 0 for none."""
        poller = select.poll()
        poller.register(self._socket, events)
        ready = poller.poll(max(0.0, timeout) * 1000)
        return ready[0][1] if ready else 0

    def _read(self) -> None:
        try:
            octets = self._socket.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            return self._end(f"the server reset the connection ({error.strerror})")
        if not octets:
            return self._end("the server closed the connection")
        first = len(self.received.frames)
        try:
            frames = self.received.feed(octets)
        except Misframed as error:
            frames = self.received.frames[first:]
            self._end(f"the server sent {error}")
        for at in range(first, first + len(frames)):
            self._note("server", functools.partial(self.received.describe, at))
        for came in frames:
            self._react(came)

    def _read_the_rest(self, how: str) -> None:
        """Nothing can be sent any more; what the server sent before (a GOAWAY, say) is still to be had."""
        self._deaf = True
        while not self.closed and self._ready(select.POLLIN, 0):
            self._read()
        self._end(how)

    def _react(self, came: Frame) -> None:
        match came:
            case SettingsFrame() if "ACK" not in came.flags:
                initial = came.settings.get(Setting.INITIAL_WINDOW_SIZE)
                if initial is not None:
                    for stream in self._stream_windows:
                        self._stream_windows[stream] += initial - self._initial_window
                    self._initial_window = initial
                if self.acknowledges:
                    self.frame(Kind.SETTINGS, Flag.ACK)
            case PingFrame() if "ACK" not in came.flags and self.acknowledges:
                self.frame(Kind.PING, Flag.ACK, 0, came.opaque_data)
            case WindowUpdateFrame():
                if came.stream_id == 0:
                    self._window += came.window_increment
                else:
                    known = self._stream_windows.get(came.stream_id, self._initial_window)
                    self._stream_windows[came.stream_id] = known + came.window_increment
            case DataFrame() if self.grants and came.flow_controlled_length:
                self.window(0, came.flow_controlled_length)
                if not self.received.ended(came.stream_id):
                    self.window(came.stream_id, came.flow_controlled_length)

    def _end(self, how: str) -> None:
        if not self.closed:
            goaways = self.received.goaways()
            if goaways and not how.startswith("closed by the client"):
                how += f" after GOAWAY {error_name(goaways[-1].error_code)}"
            self.closed = how
            self._note("server" if how.startswith("the server") else "client", how)

    def _summary(self) -> str:
        count = len(self.received.frames)
        last = "; ".join(self.received.describe(at) for at in range(max(0, count - 3), count))
        rest = self.received.unfinished
        tail = f"; {len(rest)} octets of an incomplete frame" if rest else ""
        return (f"{count} frames came, the last: {last}" if count else "no frame came") + tail

    def _note(self, actor: str, what: str | Callable[[], str]) -> None:
        label = self._label
        self._transcript.note(actor, (lambda: f"{label}: {what()}") if callable(what) else f"{label}: {what}")


def _octets(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else repr(value)[2:-1]
