"""Between neutral terms and SMG messages, as a client needs it: requests out, events in.

The wire has no ranks, no text and no model name. So a token's own rank is ``None``, an alternative's rank is
its place in the list (best come first), ``text`` is ``None`` and ``Request.model`` is not sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_grpc_conformance.engines.script import (
    Candidate,
    Finish,
    FinishReason,
    StopMatch,
    StopText,
    StopToken,
    Token,
)
from pytest_grpc_conformance.protocols.base import (
    Event,
    FinishEvent,
    Message,
    Request,
    TokensEvent,
    UnknownEvent,
    Usage,
)

FIRST_BYTE_ID = 3
"""A prompt given as text is sent as one id per UTF-8 byte, ``3 + byte``: the fake engine's own tokenizer."""

FINISH_REASONS = {
    "stop": FinishReason.STOP,
    "stop_word": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "cancelled": FinishReason.CANCELLED,
}


def prompt_ids(request: Request) -> tuple[int, ...]:
    """The token ids that go out as the request's prompt."""
    if isinstance(request.prompt, str):
        return tuple(FIRST_BYTE_ID + byte for byte in request.prompt.encode())
    return request.prompt


def to_message(request: Request) -> Message:
    """The GenerateRequest for a neutral request. Raises ``ValueError`` if a field cannot hold a value."""
    from smg_grpc_proto.generated import trtllm_service_pb2 as pb

    return pb.GenerateRequest(
        request_id=request.request_id,
        tokenized=pb.TokenizedInput(input_token_ids=prompt_ids(request)),
        sampling_config=pb.SamplingConfig(
            num_return_sequences=request.num_sequences,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            seed=request.seed,
            min_tokens=request.min_tokens,
        ),
        output_config=pb.OutputConfig(
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
        ),
        max_tokens=request.max_tokens,
        streaming=request.streaming,
        stop=[stop.text for stop in request.stops if isinstance(stop, StopText)],
        stop_token_ids=[stop.token_id for stop in request.stops if isinstance(stop, StopToken)],
        ignore_eos=request.ignore_eos,
        include_stop_token_in_output=request.include_stop,
    )


def request_id_of(message: Message) -> str:
    """The request id on a response, empty where there is none to be read."""
    request_id = getattr(message, "request_id", "")
    return request_id if isinstance(request_id, str) else ""


def to_event(message: Message) -> Event:
    """The neutral event of a GenerateResponse; an ``UnknownEvent`` for whatever is not one."""
    try:
        member = message.WhichOneof("response")
        if member == "chunk":
            return _tokens(message.chunk)
        if member == "complete":
            return _finish(message.complete)
        return UnknownEvent(f"a {type(message).__name__} with neither chunk nor complete")
    except Exception as error:  # A foreign object may raise anything.
        return UnknownEvent(f"a {type(message).__name__} that cannot be read ({type(error).__name__})")


def _tokens(chunk: Message) -> TokensEvent:
    return TokensEvent(
        index=chunk.sequence_index,
        tokens=_scored(chunk.token_ids, chunk.logprobs),
        usage=_usage(chunk),
    )


def _finish(complete: Message) -> FinishEvent:
    reason = FINISH_REASONS.get(complete.finish_reason)
    return FinishEvent(
        index=complete.sequence_index,
        finish=None if reason is None else Finish(reason, _match(complete)),
        reason=complete.finish_reason if reason is None else "",
        usage=_usage(complete),
        output=_scored(complete.output_token_ids, complete.logprobs),
        prompt=_prompt(complete.prompt_logprobs) if complete.prompt_logprobs else None,
    )


def _match(complete: Message) -> StopMatch | None:
    member = complete.WhichOneof("matched_stop")
    if member == "matched_stop_str":
        return StopText(complete.matched_stop_str)
    if member == "matched_token_id":
        return StopToken(complete.matched_token_id)
    return None


def _usage(message: Message) -> Usage:
    """Plain fields: a count that was left out cannot be told from 0."""
    return Usage(message.prompt_tokens, message.completion_tokens, message.cached_tokens)


def _scored(token_ids: Sequence[int], logprobs: Sequence[Message]) -> tuple[Token, ...]:
    """The tokens, with scores if there is one entry per token and each names its token; else without any."""
    if [entry.token_id for entry in logprobs] != list(token_ids):
        return tuple(Token(token_id) for token_id in token_ids)
    return tuple(_scored_token(entry) for entry in logprobs)


def _prompt(logprobs: Sequence[Message]) -> tuple[Token, ...]:
    """The prompt's tokens; the first entry's value is a placeholder that clients ignore (SMG-LP-006)."""
    return (Token(logprobs[0].token_id), *(_scored_token(entry) for entry in logprobs[1:]))


def _scored_token(entry: Message) -> Token:
    candidates = tuple(
        Candidate(alternative.token_id, alternative.logprob, rank)
        for rank, alternative in enumerate(entry.top_logprobs, start=1)
    )
    return Token(entry.token_id, logprob=entry.logprob, candidates=candidates)
