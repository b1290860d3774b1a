"""Engine state to response messages.

``TokenInfo.token`` and the candidates' strings are always empty: no rule asks for them, and the visible text
is in ``TokenOutput.text``. ``GenerationFinished.message`` is empty too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_grpc_conformance.engines.base import EngineFull, Generation, InvalidRequest
from pytest_grpc_conformance.engines.script import (
    EndOfSequence,
    Finish,
    FinishReason,
    StopText,
    StopToken,
    Token,
)
from pytest_grpc_conformance.protocols.openengine.bindings import error_pb2, generation_pb2

LOWEST_LOGPROB = -9999.0
"""What is sent for a lower log probability (a masked token's minus infinity) and for one that is no number."""

_REASONS = {
    FinishReason.STOP: generation_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: generation_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: generation_pb2.FINISH_REASON_CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of an accepted request as its client hears of it.

    The texts are fixed: an engine's own may leak.
    """

    code: error_pb2.ErrorCode
    message: str
    retryable: bool = False


ENGINE_FAILED = Failure(error_pb2.ERROR_CODE_INTERNAL, "the engine failed this request")
ENDED_EARLY = Failure(error_pb2.ERROR_CODE_INTERNAL, "the engine ended the request before all of its outputs finished")
UNREADABLE = Failure(error_pb2.ERROR_CODE_INTERNAL, "the engine's result could not be turned into a response")
SHED = Failure(error_pb2.ERROR_CODE_OVERLOADED, "the engine dropped this request for lack of room", retryable=True)
INVALID = Failure(error_pb2.ERROR_CODE_INVALID_ARGUMENT, "the engine found that it cannot serve this request")
ABORTED = Failure(error_pb2.ERROR_CODE_CANCELLED, "the request was aborted")


def failure_of(error: Exception) -> Failure:
    """What a client is told about an exception that an engine's result stream raised."""
    if isinstance(error, EngineFull):
        return SHED
    if isinstance(error, InvalidRequest):
        return INVALID
    return ENGINE_FAILED


def usage_of(generation: Generation | None, prompt_tokens: int) -> generation_pb2.Usage:
    """Totals over all sequences, after stops were trimmed; tokens that are held back count."""
    completion = sum(len(sequence.tokens) for sequence in generation.sequences) if generation else 0
    cached = generation.cached_tokens if generation else None
    return generation_pb2.Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion,
        total_tokens=prompt_tokens + completion,
        cached_prompt_tokens=None if cached is None else min(cached, prompt_tokens),
    )


class Formatter:
    """Makes the messages of one request; scores are in them only where they were asked for."""

    def __init__(self, request_id: str, *, logprobs: int | None, prompt_logprobs: int | None) -> None:
        self._request_id = request_id
        self._logprobs = logprobs
        self._prompt_logprobs = prompt_logprobs

    def prompt(self, generation: Generation) -> generation_pb2.GenerateResponse:
        """Every prompt token once; the first has no scores, as nothing comes before it."""
        response = generation_pb2.GenerateResponse(request_id=self._request_id)
        response.prompt.SetInParent()
        for token in generation.prompt_tokens or [Token(token_id) for token_id in generation.prompt_token_ids]:
            info = response.prompt.tokens.add(token_id=token.id)
            if self._prompt_logprobs is not None and len(response.prompt.tokens) > 1:
                _add_scores(info, token, self._prompt_logprobs)
        return response

    def tokens(self, index: int, tokens: Iterable[Token], text: str) -> generation_pb2.GenerateResponse:
        # Filled in place, which takes a third of the time that nested constructors take: this is once per token.
        response = generation_pb2.GenerateResponse()
        response.request_id = self._request_id
        output = response.token
        output.output_index = index
        output.text = text
        for token in tokens:
            info = output.tokens.add()
            info.token_id = token.id
            if self._logprobs is not None:
                _add_scores(info, token, self._logprobs)
        return response

    def finished(self, index: int, finish: Finish) -> generation_pb2.GenerateResponse:
        """Raises ``ValueError`` for a STOP without its match, which the protocol cannot express."""
        finished = generation_pb2.GenerationFinished(output_index=index, reason=_REASONS[finish.reason])
        if finish.reason is FinishReason.STOP:
            finished.stop_match.CopyFrom(_stop_match(finish))
        return generation_pb2.GenerateResponse(request_id=self._request_id, finished=finished)

    def error(self, failure: Failure, usage: generation_pb2.Usage) -> generation_pb2.GenerateResponse:
        return generation_pb2.GenerateResponse(
            request_id=self._request_id,
            error=error_pb2.EngineError(code=failure.code, message=failure.message, retryable=failure.retryable),
            usage=usage,
        )


def _stop_match(finish: Finish) -> generation_pb2.StopMatch:
    match finish.match:
        case StopText(text):
            return generation_pb2.StopMatch(stop_text=text)
        case StopToken(token_id):
            return generation_pb2.StopMatch(stop_token_id=token_id)
        case EndOfSequence(token_id):
            return generation_pb2.StopMatch(eos_token_id=token_id)
        case None:
            raise ValueError("the engine stopped a sequence without saying on what")


def _add_scores(info: generation_pb2.TokenInfo, token: Token, candidates: int) -> None:
    """The token's own score and its best candidates, best first; it is not added when it is none of them."""
    if token.logprob is not None:
        info.logprob = _logprob(token.logprob)
    if token.rank:
        info.rank = token.rank
    for candidate in sorted(token.candidates, key=lambda candidate: candidate.rank)[:candidates]:
        entry = info.candidates.add(token_id=candidate.token_id, logprob=_logprob(candidate.logprob))
        if candidate.rank:
            entry.rank = candidate.rank


def _logprob(value: float) -> float:
    return LOWEST_LOGPROB if math.isnan(value) else min(0.0, max(LOWEST_LOGPROB, value))
