"""The reference implementation of ``Inference``.

A request is validated and admitted without touching the engine; from the engine's acceptance on, every ending
but a transport failure is a message. One result of the engine becomes at most one ``token`` event per
sequence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc

from pytest_grpc_conformance.engines.base import EngineDown, EngineFull, Generation, InvalidRequest
from pytest_grpc_conformance.engines.script import Finish, FinishReason, Prompt
from pytest_grpc_conformance.protocols.openengine import formatting
from pytest_grpc_conformance.protocols.openengine.bindings import generation_pb2, openengine_pb2_grpc
from pytest_grpc_conformance.protocols.openengine.formatting import Failure, Formatter
from pytest_grpc_conformance.protocols.openengine.holdback import Progress, held_stops
from pytest_grpc_conformance.protocols.openengine.request_mapping import (
    Refused,
    Wanted,
    check_metadata,
    check_prompt,
    read_request,
)
from pytest_grpc_conformance.protocols.openengine.state import ActiveRequest, Context, ServerState

logger = logging.getLogger(__name__)


class InferenceServicer(openengine_pb2_grpc.InferenceServicer):
    """``Inference`` on an engine, for servers with ``grpc.aio``'s interface."""

    def __init__(self, state: ServerState) -> None:
        self.state = state

    def drain(self) -> None:
        """Take no new work from now on, and finish what is accepted. The protocol has no call for it."""
        self.state.draining = True

    async def Generate(
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        try:
            wanted, active = self._admit(request, context)
        except Refused as refusal:
            await context.abort(refusal.code, refusal.details)
        # The library may drop a generator that waits in ``yield`` without closing it; the callback comes in
        # any case.
        context.add_done_callback(lambda _: self.state.release(active))
        try:
            try:
                stream = await self._submit(wanted, active)
            except Refused as refusal:
                # Before the status is out, so that a client who has it can use the id again.
                self.state.release(active)
                await context.abort(refusal.code, refusal.details)
            while not stream.over:
                messages = await stream.advance()
                if stream.over:
                    # Before the last message is out, so that a client who has it can use the id again.
                    self.state.release(active)
                for message in messages:
                    yield message
        finally:
            self.state.release(active)

    def _admit(self, request: generation_pb2.GenerateRequest, context: Context) -> tuple[Wanted, ActiveRequest]:
        """Everything that can be checked without the tokenizer.

        Raises ``Refused``; then nothing is left behind.
        """
        check_metadata(context.invocation_metadata())
        wanted = read_request(request, self.state.engine.model)
        if self.state.draining:
            raise Refused(grpc.StatusCode.UNAVAILABLE, "the server is draining")
        if not isinstance(wanted.input, str):
            check_prompt(wanted.input, self.state.engine)
        active = self.state.admit(wanted.request_id)
        if active is None:
            raise Refused(grpc.StatusCode.ALREADY_EXISTS, "a request with this request_id is active")
        return wanted, active

    async def _submit(self, wanted: Wanted, active: ActiveRequest) -> ResponseStream:
        """Hand the request to the engine.

        Raises ``Refused``. A request that was aborted meanwhile is not handed over.
        """
        engine = self.state.engine
        try:
            if isinstance(wanted.input, str):
                # A tokenizer can take long, and other streams live on this loop.
                token_ids = await asyncio.to_thread(engine.tokenize, wanted.input)
                check_prompt(token_ids, engine)
                prompt = Prompt(tuple(token_ids), wanted.input)
            else:
                prompt = Prompt(wanted.input)
            if not active.aborted:
                active.generation = engine.submit(wanted.request_id, prompt, wanted.parameters)
        except Refused:
            raise
        except InvalidRequest as error:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "the engine refuses this request as invalid") from error
        except EngineFull as error:
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "the engine has no room for this request now") from error
        except EngineDown as error:
            raise Refused(grpc.StatusCode.UNAVAILABLE, "the engine is not running") from error
        except Exception as error:
            logger.warning("submission failed", exc_info=True)
            raise Refused(grpc.StatusCode.INTERNAL, "the engine did not take this request") from error
        return ResponseStream(wanted, active, len(prompt.token_ids))


class ResponseStream:
    """The messages of one accepted request, one engine result at a time, until ``over``."""

    def __init__(self, wanted: Wanted, active: ActiveRequest, prompt_tokens: int) -> None:
        parameters = wanted.parameters
        self.over = False
        self._active = active
        self._prompt_tokens = prompt_tokens
        self._prompt_due = parameters.prompt_logprobs is not None
        self._format = Formatter(
            wanted.request_id, logprobs=parameters.logprobs, prompt_logprobs=parameters.prompt_logprobs
        )
        stops = held_stops(parameters)
        self._open = parameters.num_sequences
        self._outputs = {index: Progress(stops) for index in range(parameters.num_sequences)}
        self._results = aiter(active.generation) if active.generation else None

    async def advance(self) -> list[generation_pb2.GenerateResponse]:
        """What the engine's next result gives to send: nothing, some messages, or the last ones."""
        generation = self._active.generation
        if generation is None or self._results is None:
            return [self._fail(formatting.ABORTED)]
        try:
            await anext(self._results)
        except StopAsyncIteration:
            self._active.engine_ended()
            return [self._fail(formatting.ENDED_EARLY)]
        except Exception as error:
            self._active.engine_ended()
            logger.warning("the engine failed a request", exc_info=True)
            return [self._fail(formatting.failure_of(error))]
        if generation.finished:
            self._active.engine_ended()
        try:
            return self._messages(generation)
        except Exception:
            logger.warning("an engine result could not be formatted", exc_info=True)
            return [self._fail(formatting.UNREADABLE)]

    def _messages(self, generation: Generation) -> list[generation_pb2.GenerateResponse]:
        messages = []
        if self._prompt_due:
            self._prompt_due = False
            messages.append(self._format.prompt(generation))
        for sequence in generation.sequences:
            output = self._outputs[sequence.index]
            if output.finished:
                continue
            tokens, text = output.take(sequence)
            if tokens or text:
                messages.append(self._format.tokens(sequence.index, tokens, text))
            if sequence.finish is not None:
                output.finished = True
                self._open -= 1
                messages.append(self._format.finished(sequence.index, self._shown(sequence.finish)))
        if not self._open:
            self.over = True
            messages[-1].usage.CopyFrom(formatting.usage_of(generation, self._prompt_tokens))
        return messages

    def _shown(self, finish: Finish) -> Finish:
        """Whoever was told ABORTED must see it, also when the engine's own end was on its way already."""
        return Finish(FinishReason.CANCELLED) if self._active.aborted else finish

    def _fail(self, failure: Failure) -> generation_pb2.GenerateResponse:
        self.over = True
        usage = formatting.usage_of(self._active.generation, self._prompt_tokens)
        return self._format.error(formatting.ABORTED if self._active.aborted else failure, usage)
