"""The reference ``TrtllmService``: an engine behind SMG's protocol, for ``grpc.aio`` and its likes.

It is for engines with cumulative results. All methods run on one event loop.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

import grpc
from smg_grpc_proto.generated import trtllm_service_pb2 as pb

from pytest_grpc_conformance.engines.base import (
    AbortRefused,
    Engine,
    EngineDown,
    EngineFailure,
    EngineFull,
    Generation,
    InvalidRequest,
)
from pytest_grpc_conformance.protocols.base import Message
from pytest_grpc_conformance.protocols.smg.formatting import Formatter
from pytest_grpc_conformance.protocols.smg.request_mapping import (
    INT32_MAX,
    MAX_SEQUENCES,
    Accepted,
    CallFailure,
    read_request,
)

logger = logging.getLogger(__name__)

DISTRIBUTION = "pytest-grpc-conformance"
LONGEST_DETAILS = 500
"""Characters of an engine's refusal that go out: percent-encoded, they still fit a client's header limit."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What GetModelInfo tells and the engine interface does not.

    By default the smallest network there is, and a batch that holds all sequences of one request.
    """

    max_batch_size: int = MAX_SEQUENCES
    hidden_size: int = 1
    num_layers: int = 1
    num_heads: int = 1


class _Running:
    """One accepted request: its engine handle and what is owed to its client."""

    def __init__(self, request: Accepted, generation: Generation) -> None:
        self.request_id = request.request_id
        self.aborted = False
        """The engine took an abort; it is not asked again."""
        self._generation = generation
        self._results = aiter(generation)
        self._formatter = Formatter(request, generation)
        self._ended = False
        self.done = False
        """Every message of the request has been made."""

    @property
    def ended(self) -> bool:
        """Whether the engine has reported the request's end in some way; then there is nothing to abort."""
        return self._ended or self._generation.finished

    async def step(self) -> list[Message]:
        """Wait for the engine's next result; the messages that it calls for. Raises ``CallFailure``."""
        await self._next_result()
        try:
            messages = self._formatter.messages()
        except Exception:
            logger.exception("request %r: the engine's result does not fit the protocol", self.request_id)
            raise CallFailure("INTERNAL", "the engine's result cannot be sent") from None
        # Not ``ended`` alone: an engine may be through with a request whose last results are yet to be taken.
        self.done = self.ended and self._formatter.all_finished
        return messages

    def abort(self) -> None:
        """Ask the engine to stop. Raises what ``Generation.abort`` raises."""
        self._generation.abort()
        self.aborted = True

    async def _next_result(self) -> None:
        # The engine's own words go to the log: they may name classes, files and other requests.
        try:
            await anext(self._results)
        except StopAsyncIteration:
            self._ended = True
            if not self._formatter.all_finished:
                self._fail("INTERNAL", "the engine ended the request before every sequence had finished")
        except EngineDown:
            logger.exception("request %r: the engine went down", self.request_id)
            self._fail("UNAVAILABLE", "the engine went down")
        except EngineFull:
            logger.exception("request %r: the engine dropped it", self.request_id)
            self._fail("RESOURCE_EXHAUSTED", "the engine dropped the request for lack of room")
        except EngineFailure:
            logger.exception("request %r: the engine failed it", self.request_id)
            self._fail("INTERNAL", "the engine failed the request")
        except Exception:
            logger.exception("request %r: the engine's result stream broke", self.request_id)
            raise CallFailure("INTERNAL", "the engine failed the request") from None

    def _fail(self, code: str, details: str) -> NoReturn:
        """End the call after the engine's end; an abort that was asked for explains any end."""
        self._ended = True
        if self.aborted:
            raise CallFailure("CANCELLED", "the request was aborted") from None
        raise CallFailure(code, details) from None


class TrtllmServicer:
    """The eight methods of ``trtllm.TrtllmService``."""

    def __init__(self, engine: Engine, shape: ModelShape | None = None) -> None:
        self._engine = engine
        self._shape = shape or ModelShape()
        self._running: dict[str, _Running] = {}

    async def Generate(self, request: Message, context: Any) -> AsyncIterator[Message]:
        """Validate, submit, and stream; whatever ends the call early aborts the engine's work once."""
        failure: CallFailure | None = None
        try:
            running = self._accept(request)
        except CallFailure as refusal:
            failure = refusal
        else:
            try:
                while not running.done:
                    for message in await running.step():
                        yield message
            except CallFailure as error:
                failure = error
            finally:
                self._release(running)
        # Only now, so that a client that has the status can use the id again.
        if failure is not None:
            await context.abort(grpc.StatusCode[failure.code], failure.details)

    async def Abort(self, request: Message, context: Any) -> Message:
        """Answers at once, by the exact id; the stream ends when the engine does."""
        request_id = request.request_id
        running = self._running.get(request_id)
        if running is None or running.ended:
            return pb.AbortResponse(success=False, message=f"Request {request_id} not found")
        if running.aborted:
            return pb.AbortResponse(success=False, message=f"Request {request_id} is being aborted already")
        try:
            running.abort()
        except AbortRefused:
            return pb.AbortResponse(success=False, message=f"Engine refused to abort request {request_id}")
        except Exception:
            logger.exception("request %r: abort failed", request_id)
            return pb.AbortResponse(success=False, message=f"Engine failed to abort request {request_id}")
        return pb.AbortResponse(success=True, message=f"Request {request_id} aborted")

    async def HealthCheck(self, request: Message, context: Any) -> Message:
        """Tells bad health in an OK response, also when the engine's own check raises."""
        try:
            status = "OK" if self._engine.healthy else "the engine is not healthy"
        except Exception:
            logger.exception("the engine's health check raised")
            status = "the engine's health cannot be told"
        return pb.HealthCheckResponse(status=status)

    async def GetModelInfo(self, request: Message, context: Any) -> Message:
        """No optional feature is listed, since none is supported."""
        return pb.GetModelInfoResponse(
            model_id=self._engine.model,
            max_input_len=self._max_input_tokens,
            max_seq_len=min(self._engine.max_context_tokens, INT32_MAX),
            max_batch_size=self._shape.max_batch_size,
            vocab_size=min(self._engine.vocabulary_size, INT32_MAX),
            hidden_size=self._shape.hidden_size,
            num_layers=self._shape.num_layers,
            num_heads=self._shape.num_heads,
        )

    async def GetServerInfo(self, request: Message, context: Any) -> Message:
        """One process and no parallelism; the version is that of this package."""
        return pb.GetServerInfoResponse(
            version=_package_version(),
            backend="pytorch",
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            context_parallel_size=1,
            world_size=1,
        )

    async def Embed(self, request: Message, context: Any) -> Message:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this server makes no embeddings")

    async def GetTokenizer(self, request: Message, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this server has no tokenizer files")

    async def SubscribeKvEvents(self, request: Message, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this server publishes no KV cache events")

    @property
    def _max_input_tokens(self) -> int:
        """One token of the window is left for output."""
        return min(self._engine.max_context_tokens, INT32_MAX) - 1

    def _accept(self, message: Message) -> _Running:
        """Check and submit a request. Raises ``CallFailure``; then the engine holds nothing of it."""
        request = read_request(
            message,
            max_input_tokens=self._max_input_tokens,
            vocabulary_size=self._engine.vocabulary_size,
        )
        if request.request_id in self._running:
            raise CallFailure("ALREADY_EXISTS", "a request with this id is active")
        running = _Running(request, self._submit(request))
        self._running[request.request_id] = running
        return running

    def _submit(self, request: Accepted) -> Generation:
        try:
            return self._engine.submit(request.request_id, request.prompt, request.parameters)
        except InvalidRequest as error:
            raise CallFailure("INVALID_ARGUMENT", _fit_for_clients(str(error))) from None
        except EngineFull:
            raise CallFailure("RESOURCE_EXHAUSTED", "the engine has no room now; try again later") from None
        except EngineDown:
            raise CallFailure("UNAVAILABLE", "the engine is down") from None
        except Exception:
            logger.exception("request %r: submission failed", request.request_id)
            raise CallFailure("INTERNAL", "the engine failed to take the request") from None

    def _release(self, running: _Running) -> None:
        """Free the id, which was this stream's alone; stop the engine, unless it ended or was asked to."""
        del self._running[running.request_id]
        if running.ended or running.aborted:
            return
        try:
            running.abort()
        except AbortRefused:
            logger.warning("request %r: the engine refused to abort; it runs on unheard", running.request_id)
        except Exception:
            logger.exception("request %r: abort failed", running.request_id)


def _fit_for_clients(text: str) -> str:
    """An engine's refusal as status details: encodable, and short enough to arrive."""
    return text[:LONGEST_DETAILS].encode(errors="replace").decode() or "the engine refused the request"


def _package_version() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:  # Run from a checkout that is not installed.
        return "0+unknown"
