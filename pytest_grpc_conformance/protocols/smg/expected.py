"""The messages that a script's course calls for, by rule: the source of the goldens.

Written from the rules, not from the reference servicer, whose modules it must not import:
- Every result gives, per sequence in index order: one chunk with the tokens that became visible (if any; only
  in a streaming request), then the ``complete`` if the sequence ended.
- Beside an excluded stop string a token is visible once some of its text comes before everything that may
  still become such a string; at the end all that is left is visible.
- Counts run per sequence. ``cached_tokens`` is 0 when unknown and at most the prompt's length.
- "stop" for all stops, with a match for the caller's own; "length"; "cancelled".
- Scores: one entry per token if asked for, from -9999.0 to 0.0, -9999.0 where there is none; the prompt's
  first is 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from smg_grpc_proto.generated import trtllm_service_pb2 as pb

from pytest_grpc_conformance.engines.course import Course, SequenceDelta
from pytest_grpc_conformance.engines.script import (
    Finish,
    FinishReason,
    Prompt,
    Script,
    StopText,
    StopToken,
    Token,
)
from pytest_grpc_conformance.protocols.base import Message, Request


@dataclass(slots=True)
class _Sequence:
    tokens: list[Token] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    """Where in the text each token begins."""
    text: str = ""
    visible: int = 0

    def apply(self, delta: SequenceDelta) -> None:
        if delta.keep_text is not None:
            self.text = self.text[: delta.keep_text]
        if delta.keep_tokens is not None:
            self.tokens, self.begins = self.tokens[: delta.keep_tokens], self.begins[: delta.keep_tokens]
        begin = len(self.text)
        for token, end in zip(delta.tokens, delta.text_ends, strict=True):
            self.tokens.append(token)
            self.begins.append(begin)
            begin = end
        self.text += delta.text

    def show(self, held: Sequence[str]) -> None:
        """Make visible what no stop string to come can take back."""
        undecided = _undecided_from(self.text, held)
        self.visible = sum(begin < undecided or not held for begin in self.begins)


def expected_messages(request: Request, prompt: Prompt, script: Script, course: Course) -> list[Message]:
    """The responses to a request whose script takes this course. It covers courses that end with a finish."""
    common = {
        "prompt_tokens": len(prompt.token_ids),
        "cached_tokens": min(script.cached_tokens or 0, len(prompt.token_ids)),
    }
    held = [stop.text for stop in request.stops if isinstance(stop, StopText) and not request.include_stop]
    prompt_scores = _prompt_scores(request, prompt, script)
    sequences = [_Sequence() for _ in course.outcome]
    messages = []
    for result in course.results:
        for delta in sorted(result.deltas, key=lambda delta: delta.index):
            sequence = sequences[delta.index]
            sequence.apply(delta)
            before = sequence.visible
            if request.streaming:
                sequence.show(() if delta.finish else held)
            if sequence.visible > before:
                new = sequence.tokens[before : sequence.visible]
                chunk = pb.GenerateStreamChunk(
                    token_ids=[token.id for token in new],
                    sequence_index=delta.index,
                    completion_tokens=sequence.visible,
                    logprobs=_scores(new, request.logprobs),
                    **common,
                )
                messages.append(pb.GenerateResponse(request_id=request.request_id, chunk=chunk))
            if delta.finish is not None:
                complete = pb.GenerateComplete(
                    output_token_ids=[token.id for token in sequence.tokens],
                    sequence_index=delta.index,
                    completion_tokens=len(sequence.tokens),
                    logprobs=_scores(sequence.tokens, request.logprobs),
                    prompt_logprobs=prompt_scores,
                    **_ending(delta.finish),
                    **common,
                )
                messages.append(pb.GenerateResponse(request_id=request.request_id, complete=complete))
    return messages


def _undecided_from(text: str, stops: Sequence[str]) -> int:
    """The first place from which the text, to its end, is the beginning of a stop string; else its length."""
    for place in range(len(text)):
        tail = text[place:]
        if any(len(tail) < len(stop) and stop.startswith(tail) for stop in stops):
            return place
    return len(text)


def _ending(finish: Finish) -> dict[str, Any]:
    if finish.reason is FinishReason.LENGTH:
        return {"finish_reason": "length"}
    if finish.reason is FinishReason.CANCELLED:
        return {"finish_reason": "cancelled"}
    match finish.match:
        case StopText(text):
            return {"finish_reason": "stop", "matched_stop_str": text}
        case StopToken(token_id):
            return {"finish_reason": "stop", "matched_token_id": token_id}
        case _:
            return {"finish_reason": "stop"}


def _prompt_scores(request: Request, prompt: Prompt, script: Script) -> list[Message]:
    if request.prompt_logprobs is None:
        return []
    entries = []
    for place, token_id in enumerate(prompt.token_ids):
        if place == 0:
            entries.append(pb.TokenLogprob(token_id=token_id, logprob=0.0))
        elif place < len(script.prompt):
            entries.append(_score(token_id, script.prompt[place], request.prompt_logprobs))
        else:
            entries.append(pb.TokenLogprob(token_id=token_id, logprob=-9999.0))
    return entries


def _scores(tokens: Sequence[Token], best: int | None) -> list[Message]:
    return [] if best is None else [_score(token.id, token, best) for token in tokens]


def _score(token_id: int, token: Token, best: int) -> Message:
    entry = pb.TokenLogprob(token_id=token_id, logprob=_bounded(token.logprob))
    by_rank = {candidate.rank: candidate for candidate in token.candidates}
    for rank in sorted(by_rank)[:best]:
        entry.top_logprobs.add(token_id=by_rank[rank].token_id, logprob=_bounded(by_rank[rank].logprob))
    return entry


def _bounded(logprob: float | None) -> float:
    if logprob is None or not logprob >= -9999.0:
        return -9999.0
    return logprob if logprob < 0.0 else 0.0
