"""One Generate call as a case sees it: messages on demand, each wait with a deadline, everything on the record."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import grpc

from pytest_grpc_conformance.protocols.base import (
    ErrorEvent,
    Event,
    FinishEvent,
    PromptEvent,
    Received,
    Status,
    TokensEvent,
    WireProtocol,
)
from pytest_grpc_conformance.transcript import Transcript

MOST_MESSAGES = 100_000
"""What one stream may hold: a server that repeats itself for ever must not take all memory."""


class NothingCame(TimeoutError):
    """No message and no status arrived in time. Whose fault that is, the caller knows (``asserts.py``)."""


class GenerateStream:
    """A running Generate call.

    A message is taken from the connection only when the case asks for one (``next``), so a case that does not ask is a
    slow reader; ``rest`` asks for all that is left. A thread does the reading, since a blocking stub cannot wait with a
    deadline.
    """

    def __init__(
        self, call: Any, protocol: WireProtocol, transcript: Transcript, *, timeout: float, label: str
    ) -> None:
        self.call = call
        self.protocol = protocol
        self.transcript = transcript
        self.label = label
        self.received: list[Received] = []
        self.status: Status | None = None
        self._timeout = timeout
        self._inbox: queue.SimpleQueue[Received | Status | Exception] = queue.SimpleQueue()
        self._wanted = threading.Semaphore(0)
        self._asked = False
        self._greedy = False
        self._closed = False
        self._last_came = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name=f"read {label}", daemon=True)
        self._thread.start()

    # What the case calls.

    def next(self, timeout: float | None = None) -> Received | Status:
        """The next message, or the status once there is no more. Raises ``NothingCame``."""
        if self.status is not None:
            return self.status
        self._ask()
        limit = self._timeout if timeout is None else timeout
        try:
            return self._accept(self._inbox.get(timeout=limit))
        except queue.Empty:
            raise self._nothing_came(limit) from None

    def rest(self) -> list[Received]:
        """All messages of the stream, earlier ones included, once the status is there. Raises ``NothingCame``.

        The reading thread runs by itself and hands over at its end: to wake the caller for each message would cost
        more than the message.
        """
        if self.status is None:
            self._greedy = True
            self._last_came = time.monotonic()
            self._ask()
            while (left := self._last_came + self._timeout - time.monotonic()) > 0 and not self._ended.wait(left):
                pass
        while self.status is None:
            try:
                self._accept(self._inbox.get_nowait())
            except queue.Empty:
                raise self._nothing_came(self._timeout) from None
        return self.received

    def _nothing_came(self, limit: float) -> NothingCame:
        return NothingCame(f"{self.label}: nothing came within {limit:g} s after {len(self.received)} messages")

    def _accept(self, item: Received | Status | Exception) -> Received | Status:
        self._asked = False
        if isinstance(item, Exception):
            raise item
        if isinstance(item, Status):
            self.status = item
        else:
            self.received.append(item)
        return item

    def cancel(self) -> None:
        """Cancel the RPC, as a client does that has lost interest."""
        self.transcript.note("client", f"{self.label}: cancel")
        self.call.cancel()

    def close(self) -> None:
        """End the call and its thread; nothing is left behind."""
        self._closed = True
        self.call.cancel()
        self._wanted.release()
        self._thread.join(self._timeout)

    # The reading thread.

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._wanted.release()

    def _read(self) -> None:
        try:
            for _ in range(MOST_MESSAGES):
                if not self._greedy:
                    self._wanted.acquire()
                if self._closed:
                    return
                item = self._take()
                self._last_came = time.monotonic()
                self._inbox.put(item)
                if isinstance(item, Status):
                    return
            self._inbox.put(NothingCame(f"{self.label}: no status came after {MOST_MESSAGES} messages"))
        except Exception as error:  # The case's thread must see it, whatever it is.
            self._inbox.put(error)
        finally:
            self._ended.set()

    def _take(self) -> Received | Status:
        try:
            raw = next(self.call)
        except (StopIteration, grpc.RpcError):
            status = status_of(self.call)
            self.transcript.note("server", f"{self.label}: status {status.code} {status.details}")
            return status
        message = self.protocol.generate.response.FromString(raw)
        event = self.protocol.to_event(message)
        self.transcript.note("server", lambda: f"{self.label}: {describe(event)}")
        return Received(raw, message, self.protocol.request_id_of(message), event)


def status_of(call: Any) -> Status:
    """The status of a finished call (a ``grpc.Call``, or the error that a unary stub raised)."""
    code = call.code()
    trailers = tuple((key, value) for key, value in (call.trailing_metadata() or ()))
    return Status("UNKNOWN" if code is None else code.name, call.details() or "", trailers)


def describe(event: Event) -> str:
    """One line about an event, for transcripts and failures; the text in it is the server's."""
    match event:
        case TokensEvent(index, tokens, text):
            ids = [token.id for token in tokens]
            shown = f"{ids[:8]}{'...' if len(ids) > 8 else ''}"
            return f"tokens[{index}] {shown}" + ("" if text is None else f" text {text!r}")
        case FinishEvent(index, finish, reason):
            words = reason if finish is None else f"{finish.reason.value} match {finish.match}"
            return f"finished[{index}] {words}" + ("" if event.usage is None else f" {event.usage}")
        case PromptEvent(tokens):
            return f"prompt with {len(tokens)} tokens"
        case ErrorEvent(code, message, retryable):
            return f"error {code} retryable={retryable} {message!r}"
        case _:
            return f"unknown event {event.description}"
