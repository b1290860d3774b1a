"""How the results of a course change what a servicer sees: applied one by one, or turned into what is new."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from pytest_grpc_conformance.engines.base import SequenceState
from pytest_grpc_conformance.engines.course import (
    SequenceDelta,
    StepResult,
    safe_length,
    tokens_before_text,
)
from pytest_grpc_conformance.engines.parameters import GenerationParameters


def apply(delta: SequenceDelta, state: SequenceState) -> None:
    """Bring a cumulative state one result further."""
    if delta.keep_tokens is not None:
        del state.tokens[delta.keep_tokens :], state.text_ends[delta.keep_tokens :]
    if delta.keep_text is not None:
        state.text = state.text[: delta.keep_text]
        late = bisect.bisect_right(state.text_ends, delta.keep_text)
        state.text_ends[late:] = [delta.keep_text] * (len(state.text_ends) - late)
    state.tokens += delta.tokens
    state.text_ends += delta.text_ends
    if delta.text:
        state.text += delta.text
    state.finish = delta.finish


def only_new(results: Iterable[StepResult], parameters: GenerationParameters) -> tuple[StepResult, ...]:
    """The same results as a delta engine gives them: joined, they are the outcome, and nothing is taken back.

    Text that may be part of a stop string which is excluded from the output is held back until that is
    decided, and so are the tokens that such text belongs to; a sequence that ends lets go of the rest.
    There are as many results as before: one in which everything is held back has no delta for the sequence.
    ``text_ends`` still counts from the start of the sequence, and a token that is shown with a part of its
    text only ends after that part.
    """
    held = () if parameters.include_stop else parameters.stop_texts
    sequences: dict[int, _Shown] = {}
    return tuple(
        StepResult(
            tuple(
                new
                for delta in result.deltas
                if (new := sequences.setdefault(delta.index, _Shown(delta.index)).take(delta, held))
            ),
            result.finished,
        )
        for result in results
    )


class _Shown:
    """One sequence, with how much of it has been shown."""

    def __init__(self, index: int) -> None:
        self.state = SequenceState(index)
        self.tokens = 0
        self.text = 0

    def take(self, delta: SequenceDelta, stops: tuple[str, ...]) -> SequenceDelta | None:
        state = self.state
        apply(delta, state)
        tokens, text = len(state.tokens), len(state.text)
        if stops and state.finish is None:
            text = safe_length(state.text, stops)
            tokens = tokens_before_text(state.text_ends, text)
        new = SequenceDelta(
            state.index,
            tuple(state.tokens[self.tokens : tokens]),
            state.text[self.text : text],
            tuple(state.text_ends[self.tokens : tokens]),
            state.finish,
        )
        self.tokens, self.text = tokens, text
        return new if new.tokens or new.text or new.finish else None
