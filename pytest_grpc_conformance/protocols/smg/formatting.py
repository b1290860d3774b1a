"""From an engine's state after each result to the messages that are due.

Choices where the protocol leaves one open:
- ``finish_reason`` is "stop" for every stop, a stop string included, as TensorRT-LLM has it; ``matched_stop``
  tells the kinds apart. A sequence that an abort ended has "cancelled".
- A log probability is kept within -9999.0 and 0.0, and -9999.0 also stands for one that the engine could not
  give (minus infinity, not a number, no score at all).
- The prompt's first token has the placeholder 0.0 and no alternatives.
- Every ``complete`` of a request carries the prompt's log probabilities.
- A cached count that the engine does not know is 0: the field has no presence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from smg_grpc_proto.generated import trtllm_service_pb2 as pb

from pytest_grpc_conformance.engines.base import Generation, SequenceState
from pytest_grpc_conformance.engines.course import safe_length, tokens_before_text
from pytest_grpc_conformance.engines.script import Finish, FinishReason, StopText, StopToken, Token
from pytest_grpc_conformance.protocols.base import Message
from pytest_grpc_conformance.protocols.smg.request_mapping import Accepted

LOWEST_LOGPROB = -9999.0
PROMPT_PLACEHOLDER = 0.0

FINISH_WORDS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "cancelled",
}


@dataclass(slots=True)
class _Progress:
    """How far the client has one sequence."""

    sent: int = 0
    finished: bool = False


class Formatter:
    """The messages of one request. Call ``messages`` once per result of the engine.

    The engine's lists are cumulative. While a sequence runs, tokens that may turn out to belong to an
    excluded stop string are held back; its last result releases what the engine left.
    """

    def __init__(self, request: Accepted, generation: Generation) -> None:
        self._request_id = request.request_id
        self._streaming = request.streaming
        self._parameters = request.parameters
        self._held_stops = () if request.parameters.include_stop else request.parameters.stop_texts
        self._generation = generation
        self._prompt_ids = request.prompt.token_ids
        self._cached: int | None = None
        self._progress = {index: _Progress() for index in range(request.parameters.num_sequences)}

    @property
    def all_finished(self) -> bool:
        """Whether every sequence has had its ``complete``."""
        return all(progress.finished for progress in self._progress.values())

    def messages(self) -> list[Message]:
        """What the engine's last result adds: per sequence a chunk of new tokens; ``complete`` at its end."""
        messages: list[Message] = []
        for state in self._generation.sequences:
            progress = self._progress.setdefault(state.index, _Progress())
            if progress.finished:
                continue
            visible = self._visible(state) if self._streaming else 0
            if visible > progress.sent:
                messages.append(self._chunk(state, progress.sent, visible))
                progress.sent = visible
            if state.finish is not None:
                messages.append(self._complete(state, state.finish))
                progress.finished = True
        return messages

    def _visible(self, state: SequenceState) -> int:
        """How many tokens the client may have."""
        if state.finish is not None or not self._held_stops:
            return len(state.tokens)
        return tokens_before_text(state.text_ends, safe_length(state.text, self._held_stops))

    def _chunk(self, state: SequenceState, start: int, end: int) -> Message:
        tokens = state.tokens[start:end]
        return pb.GenerateResponse(
            request_id=self._request_id,
            chunk=pb.GenerateStreamChunk(
                token_ids=[token.id for token in tokens],
                sequence_index=state.index,
                prompt_tokens=len(self._prompt_ids),
                completion_tokens=end,
                cached_tokens=self._cached_tokens(),
                logprobs=_logprobs(tokens, self._parameters.logprobs),
            ),
        )

    def _complete(self, state: SequenceState, finish: Finish) -> Message:
        complete = pb.GenerateComplete(
            output_token_ids=[token.id for token in state.tokens],
            sequence_index=state.index,
            finish_reason=FINISH_WORDS[finish.reason],
            prompt_tokens=len(self._prompt_ids),
            completion_tokens=len(state.tokens),
            cached_tokens=self._cached_tokens(),
            logprobs=_logprobs(state.tokens, self._parameters.logprobs),
            prompt_logprobs=_prompt_logprobs(
                self._prompt_ids, self._generation.prompt_tokens, self._parameters.prompt_logprobs
            ),
        )
        # Presence through the oneof: id 0 is a match too. The model's own end-of-sequence id is none.
        if isinstance(finish.match, StopText):
            complete.matched_stop_str = finish.match.text
        elif isinstance(finish.match, StopToken):
            complete.matched_token_id = finish.match.token_id
        return pb.GenerateResponse(request_id=self._request_id, complete=complete)

    def _cached_tokens(self) -> int:
        """The count that the first message had, so that a stream does not change its mind."""
        if self._cached is None:
            self._cached = min(self._generation.cached_tokens or 0, len(self._prompt_ids))
        return self._cached


def _logprobs(tokens: Iterable[Token], best: int | None) -> list[Message]:
    """One entry per token, none at all when the request did not ask."""
    return [] if best is None else [_entry(token.id, token, best) for token in tokens]


def _prompt_logprobs(token_ids: Sequence[int], scored: Sequence[Token], best: int | None) -> list[Message]:
    """One entry per prompt token; the engine's entry at a place belongs to the token at that place."""
    if best is None:
        return []
    first = pb.TokenLogprob(token_id=token_ids[0], logprob=PROMPT_PLACEHOLDER)
    return [
        first,
        *(
            _entry(token_id, scored[place] if place < len(scored) else None, best)
            for place, token_id in enumerate(token_ids[1:], start=1)
        ),
    ]


def _entry(token_id: int, token: Token | None, best: int) -> Message:
    """A token's own score, which need not be among the best, and its ``best`` alternatives by rank."""
    if token is None:
        return pb.TokenLogprob(token_id=token_id, logprob=LOWEST_LOGPROB)
    ranked = sorted(token.candidates, key=lambda candidate: candidate.rank)[:best]
    return pb.TokenLogprob(
        token_id=token_id,
        logprob=finite_logprob(token.logprob),
        top_logprobs=[
            pb.TopLogprob(token_id=candidate.token_id, logprob=finite_logprob(candidate.logprob))
            for candidate in ranked
        ],
    )


def finite_logprob(value: float | None) -> float:
    """The nearest value from -9999.0 to 0.0; the lowest for no number at all."""
    if value is None or math.isnan(value):
        return LOWEST_LOGPROB
    return min(0.0, max(LOWEST_LOGPROB, value))
