"""A call of grpcio's own client, as one frozen outcome that can be compared with another server's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

Metadata = tuple[tuple[str, str | bytes], ...]
OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_metadata_size", 1 << 20),
    ("grpc.absolute_max_metadata_size", 1 << 20),
)
UNTOLD = frozenset({"grpc-accept-encoding", "accept-encoding", "user-agent", "date", "server"})
"""Keys that a library adds for itself: they are no part of what the handler sent."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a stock client saw of one call. Metadata is sorted by key; values of one key keep their order."""

    code: str
    details: str = ""
    messages: tuple[bytes, ...] = ()
    initial: Metadata = ()
    trailing: Metadata = ()

    def __str__(self) -> str:
        shown = ", ".join(repr(message[:24]) for message in self.messages[:4])
        more = f" of {len(self.messages)}" if len(self.messages) > 4 else ""
        words = [f"{self.code} {self.details!r}", f"messages [{shown}]{more}"]
        if self.initial:
            words.append(f"initial {self.initial!r:.200}")
        if self.trailing:
            words.append(f"trailing {self.trailing!r:.200}")
        return ", ".join(words)


def told(metadata: Any) -> Metadata:
    """Metadata in the normal form: without what a library adds for itself, sorted by key."""
    found = [(key, value) for key, value in metadata or () if key not in UNTOLD]
    return tuple(sorted(found, key=lambda item: item[0]))


def call(
    channel: grpc.Channel,
    path: str,
    requests: bytes | Iterable[bytes] = b"",
    *,
    streaming: bool = True,
    timeout: float | None = None,
    metadata: Sequence[tuple[str, str | bytes]] = (),
    **options: Any,
) -> Outcome:
    """Make a call and wait for its end. ``requests`` that are no ``bytes`` are a request stream; ``streaming`` is
    about the response, and true also fits a unary method. ``timeout`` is sent as the deadline.
    """
    kinds: dict[tuple[bool, bool], Any] = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    many = not isinstance(requests, bytes)
    method = kinds[many, streaming](path)
    given = iter(requests) if many else requests
    arguments = {"timeout": timeout, "metadata": tuple(metadata) or None, **options}
    messages: list[bytes] = []
    if streaming:
        running = method(given, **arguments)
        with contextlib.suppress(grpc.RpcError):
            messages.extend(running)
        return outcome(running, messages)
    try:
        response, running = method.with_call(given, **arguments)
        messages.append(response)
    except grpc.RpcError as error:
        running = error
    return outcome(running, messages)


def outcome(running: Any, messages: Sequence[bytes]) -> Outcome:
    """The outcome of a call that has ended (a ``grpc.Call``, or the error that it raised)."""
    code = running.code()
    return Outcome(
        "no code" if code is None else code.name,
        running.details() or "",
        tuple(messages),
        told(running.initial_metadata()),
        told(running.trailing_metadata()),
    )
