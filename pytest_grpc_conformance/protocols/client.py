"""A stock gRPC client of one protocol on one connection, with every call on the record."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import grpc

from pytest_grpc_conformance.protocols.base import AbortAnswer, Health, Request, WireProtocol
from pytest_grpc_conformance.protocols.stream import GenerateStream
from pytest_grpc_conformance.transcript import Transcript

CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    # Each client is a connection of its own, on this host, and shows what the server did at its first try.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    # Not grpc.min_reconnect_backoff_ms as well: that is how long a first attempt may take, on a busy machine too.
    ("grpc.initial_reconnect_backoff_ms", 50),
)
FIXED_WINDOW: tuple[tuple[str, Any], ...] = (("grpc.http2.bdp_probe", 0),)
"""Keeps the receive window at HTTP/2's 64 KiB, so that a reader who stops soon stops the sender."""


def _as_is(raw: bytes) -> bytes:
    return raw


class Client:
    """One connection. Use it as a context manager, or ``close`` it: that ends its calls."""

    def __init__(
        self,
        protocol: WireProtocol,
        address: str,
        transcript: Transcript,
        *,
        model: str,
        timeout: float,
        options: tuple[tuple[str, Any], ...] = (),
    ) -> None:
        self.protocol = protocol
        self.transcript = transcript
        self.model = model
        self.timeout = timeout
        self.channel = grpc.insecure_channel(address, options=[*CHANNEL_OPTIONS, *options])
        self._streams: list[GenerateStream] = []
        method = protocol.generate
        self._generate = self.channel.unary_stream(
            method.path, request_serializer=method.request.SerializeToString, response_deserializer=_as_is
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def generate(self, request: Request, *, deadline: float | None = None) -> GenerateStream:
        """Start a Generate call. ``deadline``: seconds that are sent as the RPC's own timeout, ``None`` for none."""
        return self.send(
            self.protocol.to_message(request, model=self.model),
            label=request.request_id or "(no id)",
            metadata=request.metadata,
            deadline=deadline,
        )

    def send(
        self,
        message: Any,
        *,
        label: str,
        metadata: tuple[tuple[str, str | bytes], ...] = (),
        deadline: float | None = None,
    ) -> GenerateStream:
        """Start a Generate call with a message of the case's own making."""
        within = "" if deadline is None else f", deadline {deadline:g} s"
        self.transcript.note("client", f"{label}: Generate{within}")
        call = self._generate(message, timeout=deadline, metadata=metadata or None)
        stream = GenerateStream(call, self.protocol, self.transcript, timeout=self.timeout, label=label)
        self._streams.append(stream)
        return stream

    def abort(self, request_id: str) -> AbortAnswer:
        """Abort a request by id. Raises ``grpc.RpcError`` when the RPC itself fails."""
        self.transcript.note("client", f"{request_id}: Abort")
        answer = self.protocol.abort(self.channel, request_id, self.timeout)
        self.transcript.note("server", f"{request_id}: abort answered {answer.value}")
        return answer

    def abort_all(self) -> AbortAnswer:
        """Abort every request. Raises ``grpc.RpcError`` when the RPC itself fails."""
        self.transcript.note("client", "Abort of all requests")
        answer = self.protocol.abort_all(self.channel, self.timeout)
        self.transcript.note("server", f"abort of all requests answered {answer.value}")
        return answer

    def health(self) -> Health:
        """Ask for the server's health. Raises ``grpc.RpcError`` when the RPC itself fails."""
        health = self.protocol.health(self.channel, self.timeout)
        self.transcript.note("server", f"health: {health.words}")
        return health

    def wait_connected(self) -> None:
        """Return once the server has answered a first call, whatever it said. Raises ``grpc.RpcError`` if none came.

        Not by the channel's connectivity: closing a channel that is watched waits for the watching thread.
        """
        try:
            self.protocol.health(self.channel, self.timeout)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise

    def close(self) -> None:
        """End every call and the connection."""
        for stream in self._streams:
            stream.close()
        self.channel.close()
