"""Neutral requests to GenerateRequest, and GenerateResponse to neutral events.

Words for enum numbers are the protocol's names without their common prefix (``INTERNAL`` for
``ERROR_CODE_INTERNAL``); a number without a name is its digits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytest_grpc_conformance.engines.script import (
    Candidate,
    EndOfSequence,
    Finish,
    FinishReason,
    StopMatch,
    StopText,
    StopToken,
    Token,
)
from pytest_grpc_conformance.protocols.base import (
    ErrorEvent,
    Event,
    FinishEvent,
    PromptEvent,
    Request,
    TokensEvent,
    UnknownEvent,
    Usage,
)
from pytest_grpc_conformance.protocols.openengine.bindings import error_pb2, generation_pb2

_REASONS = {
    generation_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    generation_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    generation_pb2.FINISH_REASON_CANCELLED: FinishReason.CANCELLED,
}


def to_message(request: Request, *, model: str) -> generation_pb2.GenerateRequest:
    """The request message. What is ``None`` is absent on the wire, and so is a submessage without any field.

    ``streaming`` has no counterpart. ``logprobs=k`` is the flag with a ``top_n`` selection, ``k = 0``
    included.
    """
    message = generation_pb2.GenerateRequest(
        request_id=request.request_id, model=model if request.model is None else request.model
    )
    if isinstance(request.prompt, str):
        message.prompt = request.prompt
    else:
        message.token_ids.SetInParent()
        message.token_ids.ids.extend(request.prompt)
    _set_present(
        message.sampling,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=request.seed,
        num_sequences=request.num_sequences,
    )
    _set_present(
        message.stopping,
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens,
        ignore_eos=request.ignore_eos,
        include_stop_in_output=request.include_stop,
    )
    for stop in request.stops:
        condition = message.stopping.conditions.add()
        if isinstance(stop, StopText):
            condition.stop_text = stop.text
        else:
            condition.stop_token_id = stop.token_id
    if request.logprobs is not None:
        message.response.return_output_logprobs = True
        message.response.output_candidates.top_n = request.logprobs
    if request.prompt_logprobs is not None:
        message.response.return_prompt_logprobs = True
        message.response.prompt_candidates.top_n = request.prompt_logprobs
    return message


def _set_present(message: Any, **values: Any) -> None:
    for field, value in values.items():
        if value is not None:
            setattr(message, field, value)


def to_event(message: Any) -> Event:
    """The neutral event of a response message. Never raises: what cannot be read is an ``UnknownEvent``."""
    try:
        usage = _usage(message)
        match message.WhichOneof("event"):
            case "token":
                return _tokens(message.token, usage)
            case "finished":
                return _finished(message.finished, usage)
            case "prompt":
                return PromptEvent(_token_list(message.prompt.tokens), usage)
            case "error":
                error = message.error
                return ErrorEvent(word(error_pb2.ErrorCode, error.code), error.message, error.retryable, usage)
            case None:
                return UnknownEvent("no member of the response's event is set", usage)
            case member:
                return UnknownEvent(f"the event is {member}, which has no neutral form", usage)
    except Exception as error:  # Whatever a server sent, the case has to get an event that it can judge.
        return UnknownEvent(f"unreadable response ({type(error).__name__}: {error})")


def word(enum: Any, number: int) -> str:
    """The name of an enum number without the prefix of its enum, or the digits when it has no name."""
    value = enum.DESCRIPTOR.values_by_number.get(number)
    if value is None:
        return str(number)
    zero: str = enum.DESCRIPTOR.values_by_number[0].name
    name: str = value.name
    return name.removeprefix(zero.removesuffix("UNSPECIFIED"))


def _usage(message: Any) -> Usage | None:
    if not message.HasField("usage"):
        return None
    usage = message.usage
    cached = usage.cached_prompt_tokens if usage.HasField("cached_prompt_tokens") else None
    return Usage(usage.prompt_tokens, usage.completion_tokens, cached, usage.total_tokens)


def _index(output: generation_pb2.TokenOutput | generation_pb2.GenerationFinished) -> int | None:
    return output.output_index if output.HasField("output_index") else None


def _tokens(output: generation_pb2.TokenOutput, usage: Usage | None) -> TokensEvent:
    return TokensEvent(_index(output), _token_list(output.tokens), output.text, usage)


def _token_list(tokens: Iterable[generation_pb2.TokenInfo]) -> tuple[Token, ...]:
    return tuple(
        Token(
            token.token_id,
            token.token.encode(),
            token.logprob if token.HasField("logprob") else None,
            token.rank if token.HasField("rank") else None,
            # A candidate without a rank shows rank 0, which no right server sends.
            tuple(Candidate(candidate.token_id, candidate.logprob, candidate.rank) for candidate in token.candidates),
        )
        for token in tokens
    )


def _finished(finished: generation_pb2.GenerationFinished, usage: Usage | None) -> FinishEvent:
    reason = _REASONS.get(finished.reason)
    if reason is None:
        return FinishEvent(_index(finished), None, word(generation_pb2.FinishReason, finished.reason), usage)
    return FinishEvent(_index(finished), Finish(reason, _match(finished)), usage=usage)


def _match(finished: generation_pb2.GenerationFinished) -> StopMatch | None:
    match finished.stop_match.WhichOneof("match"):
        case "stop_text":
            return StopText(finished.stop_match.stop_text)
        case "stop_token_id":
            return StopToken(finished.stop_match.stop_token_id)
        case "eos_token_id":
            return EndOfSequence(finished.stop_match.eos_token_id)
        case _:
            return None
