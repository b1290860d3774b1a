"""What the tests of the SMG servicer run it on: a server on loopback with a client, and hand-made engines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from smg_grpc_proto.generated import trtllm_service_pb2_grpc

from pytest_grpc_conformance.engines.base import Engine, SequenceState
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Prompt, Token, one_by_one, tokens
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.protocols.smg import SMG
from pytest_grpc_conformance.servers.base import ServerLibrary, ServerSetup
from pytest_grpc_conformance.targets.loop_thread import LoopThread

TIMEOUT = 20.0
"""Bounds a hang; no test waits for it to pass."""
SECRET = "SECRET /opt/engine.py"
"""What an engine may say in its errors and no client may read."""
WORDS = one_by_one(tokens(3))


@dataclass(frozen=True)
class Ended:
    """A finished Generate call."""

    messages: list[Any]
    code: str
    details: str

    @property
    def chunks(self) -> list[Any]:
        return [message.chunk for message in self.messages if message.HasField("chunk")]

    @property
    def completes(self) -> list[Any]:
        return [message.complete for message in self.messages if message.HasField("complete")]


class SmgClient:
    """Blocking calls to one server."""

    def __init__(self, address: str) -> None:
        self.address = address
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
        self.channel = grpc.insecure_channel(address, options=options)
        self.stub = trtllm_service_pb2_grpc.TrtllmServiceStub(self.channel)

    def start(self, request: Request | Any, *, timeout: float = TIMEOUT) -> Any:
        """A running Generate call."""
        message = SMG.to_message(request, model="") if isinstance(request, Request) else request
        return self.stub.Generate(message, timeout=timeout)

    def generate(self, request: Request | Any) -> Ended:
        """A whole Generate call."""
        return drain(self.start(request))

    def generate_once_free(self, request: Request) -> Ended:
        """A whole Generate call, as soon as the id of an earlier stream is free, which that stream's end makes it."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            ended = self.generate(request)
            if ended.code != "ALREADY_EXISTS":
                return ended
        raise TimeoutError(f"{request.request_id[:20]!r} stays taken")


def drain(call: Any) -> Ended:
    """Read a call to its end."""
    messages = []
    try:
        for message in call:
            messages.append(message)
    except grpc.RpcError:
        pass
    return Ended(messages, call.code().name, call.details())


def ids(message: Any) -> list[int]:
    """The token ids of a chunk."""
    return list(message.chunk.token_ids)


@contextmanager
def serving(engine: Engine, library: ServerLibrary, loop: LoopThread) -> Iterator[SmgClient]:
    """The reference servicer on a fresh server, with a client."""
    [registration] = SMG.servicers(engine)
    setup = ServerSetup([lambda server: registration.add(registration.servicer, server)])
    server = loop.run(library.start(setup), TIMEOUT)
    client = SmgClient(f"127.0.0.1:{server.port}")
    try:
        yield client
    finally:
        client.channel.close()
        loop.run(server.stop(None), TIMEOUT)


@dataclass
class HandMadeGeneration:
    """A handle whose states, one list per result, and whose end are given outright.

    ``finished`` is what it says from the start, as an engine does that was done inside ``submit``.
    """

    states: Sequence[list[SequenceState]]
    error: Exception | None = None
    finished: bool = False
    request_id: str = "r"
    parameters: GenerationParameters = field(default_factory=GenerationParameters)
    prompt_token_ids: tuple[int, ...] = (1, 2, 3)
    prompt_tokens: tuple[Token, ...] = ()
    cached_tokens: int | None = 0
    sequences: list[SequenceState] = field(default_factory=list)
    taken: int = 0
    aborts: int = 0
    abort_error: Exception | None = None

    def __aiter__(self) -> HandMadeGeneration:
        return self

    async def __anext__(self) -> HandMadeGeneration:
        if self.taken < len(self.states):
            self.sequences = self.states[self.taken]
            self.taken += 1
            return self
        if self.error is not None:
            raise self.error
        raise StopAsyncIteration

    def abort(self) -> None:
        self.aborts += 1
        if self.abort_error is not None:
            raise self.abort_error


@dataclass
class HandMadeEngine:
    """Gives every submission the same answer: a handle, or an error that it raises."""

    answer: HandMadeGeneration | Exception
    model: str = "hand-made"
    max_context_tokens: int = 64
    vocabulary_size: int = 1000
    eos_token_ids: frozenset[int] = frozenset()
    healthy: bool = True

    def tokenize(self, text: str) -> tuple[int, ...]:
        return tuple(3 + byte for byte in text.encode())

    def submit(self, request_id: str, prompt: Prompt, parameters: GenerationParameters) -> HandMadeGeneration:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer
