"""From a script and a request's parameters to what the engine emits: the rules of stopping, as functions.

The rules are those of TensorRT-LLM's engine layer as servicers meet it: results are cumulative, the engine
finds stop strings in the text itself, text that later turns out to be part of an excluded stop has already
been shown to the servicer (who must hold it back), and a stop that is excluded from the output is trimmed in
the last result.
"""

from __future__ import annotations

import bisect
import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import (
    Advance,
    Ending,
    EndOfSequence,
    Finish,
    FinishReason,
    Script,
    Step,
    StopText,
    StopToken,
    Token,
)

REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class SequenceDelta:
    """What one result changes in one sequence.

    First the sequence is cut to ``keep_tokens`` tokens and ``keep_text`` characters where these are not
    ``None`` (a trimmed stop, or a last token whose share of the text changed at the end); a token that
    stays ends at ``keep_text`` at the latest. Then tokens and text are appended. ``text_ends`` holds, for
    each new token, the length of the sequence's text once that token had been decoded.
    """

    index: int
    tokens: tuple[Token, ...] = ()
    text: str = ""
    text_ends: tuple[int, ...] = ()
    finish: Finish | None = None
    keep_tokens: int | None = None
    keep_text: int | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the engine hands over for one step, and whether the request is over with it."""

    deltas: tuple[SequenceDelta, ...] = ()
    finished: bool = False


@dataclass(frozen=True, slots=True)
class SequenceOutcome:
    """What a client must have received of one sequence in the end."""

    tokens: tuple[Token, ...] = ()
    text: str = ""
    finish: Finish | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids alone, in order."""
        return tuple(token.id for token in self.tokens)


@dataclass(frozen=True, slots=True)
class Course:
    """A script cut by a request's parameters: the results, the outcome, and how the result stream ends."""

    results: tuple[StepResult, ...]
    outcome: tuple[SequenceOutcome, ...]
    ending: Ending | None
    """``None`` when every sequence finished; else what the engine does after the last result."""

    @property
    def completion_tokens(self) -> int:
        """Visible tokens over all sequences."""
        return sum(len(sequence.tokens) for sequence in self.outcome)


def course(script: Script, parameters: GenerationParameters, eos_token_ids: frozenset[int] = frozenset()) -> Course:
    """Play a script under the parameters of a request.

    Sequences that the script never advances, up to ``num_sequences``, count as open. Steps after the last
    finish are not played.
    """
    sequences = [_Sequence(index, parameters, eos_token_ids) for index in range(_num_sequences(script, parameters))]
    still_open = {sequence.index: sequence for sequence in sequences}
    results: list[StepResult] = []
    for number, step in enumerate(script.steps):
        last = number == len(script.steps) - 1 and script.ending is Ending.LENGTH
        results.append(_play(step, still_open, close_all=last))
        if not still_open:
            break
    if not script.steps and script.ending is Ending.LENGTH:
        results.append(_play(Step(), still_open, close_all=True))
    return Course(
        tuple(results),
        tuple(sequence.outcome() for sequence in sequences),
        script.ending if still_open else None,
    )


def cancelled_course(
    script: Script,
    parameters: GenerationParameters,
    eos_token_ids: frozenset[int] = frozenset(),
    *,
    steps: int,
) -> Course:
    """The course of a request that an abort ends once ``steps`` steps of it have been played.

    The open sequences finish as ``CANCELLED`` in one more result, without new tokens. A request that was
    over by then keeps its own end.
    """
    if script.ending is Ending.LENGTH and steps >= max(1, len(script.steps)):
        return course(script, parameters, eos_token_ids)
    cancel = Step(
        tuple(
            Advance(index, finish=Finish(FinishReason.CANCELLED)) for index in range(_num_sequences(script, parameters))
        )
    )
    return course(replace(script, steps=(*script.steps[:steps], cancel)), parameters, eos_token_ids)


def _num_sequences(script: Script, parameters: GenerationParameters) -> int:
    return max(parameters.num_sequences, script.num_sequences)


def _play(step: Step, still_open: dict[int, _Sequence], *, close_all: bool) -> StepResult:
    """Play one step; sequences that finish with it leave ``still_open``."""
    advances = step.advances
    if close_all:
        advances = _closing(advances, still_open)
    elif len(advances) > 1:
        advances = tuple(sorted(advances, key=lambda advance: advance.index))
    deltas = []
    for advance in advances:
        sequence = still_open.get(advance.index)
        if sequence is not None:
            deltas.append(sequence.advance(advance.tokens, advance.finish))
            if sequence.finish is not None:
                del still_open[advance.index]
    return StepResult(tuple(deltas), not still_open)


def _closing(advances: Iterable[Advance], still_open: Iterable[int]) -> tuple[Advance, ...]:
    """The last step of a script: sequences that it leaves open finish with ``LENGTH``."""
    length = Finish(FinishReason.LENGTH)
    known = {advance.index: advance for advance in advances}
    closing = (known.get(index, Advance(index)) for index in still_open)
    return tuple(advance if advance.finish else replace(advance, finish=length) for advance in closing)


@dataclass(slots=True)
class _Sequence:
    """One sequence while a script is being played."""

    index: int
    parameters: GenerationParameters
    eos_token_ids: frozenset[int]
    tokens: list[Token] = field(default_factory=list)
    text_ends: list[int] = field(default_factory=list)
    text: str = ""
    finish: Finish | None = None
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )

    def outcome(self) -> SequenceOutcome:
        return SequenceOutcome(tuple(self.tokens), self.text, self.finish)

    def advance(self, tokens: Iterable[Token], finish: Finish | None) -> SequenceDelta:
        tokens_before, text_before = len(self.tokens), len(self.text)
        cut: tuple[int, int] | None = None
        for token in tokens:
            cut = self._take(token)
            if self.finish is not None:
                break
        if self.finish is None and finish is not None:
            self.finish = finish
        keep_tokens = keep_text = None
        if self.finish is not None and cut is None and self._flush() and len(self.tokens) == tokens_before:
            # The token that the rest of the text belongs to was shown earlier, so it is shown anew.
            tokens_before -= 1
            keep_tokens = tokens_before
        if cut is not None:
            keep_tokens, keep_text = self._cut(cut, tokens_before, text_before)
            tokens_before = tokens_before if keep_tokens is None else keep_tokens
            text_before = text_before if keep_text is None else keep_text
        return SequenceDelta(
            self.index,
            tuple(self.tokens[tokens_before:]),
            self.text[text_before:],
            tuple(self.text_ends[tokens_before:]),
            self.finish,
            keep_tokens,
            keep_text,
        )

    def _cut(self, cut: tuple[int, int], tokens_before: int, text_before: int) -> tuple[int | None, int | None]:
        tokens, text = cut
        del self.tokens[tokens:], self.text_ends[tokens:]
        self.text = self.text[:text]
        self.text_ends = [min(end, text) for end in self.text_ends]
        return (tokens if tokens < tokens_before else None, text if text < text_before else None)

    def _take(self, token: Token) -> tuple[int, int] | None:
        """Add one token; on a stop text also return what to cut the sequence to (tokens, characters)."""
        may_stop = len(self.tokens) >= (self.parameters.min_tokens or 0)
        if may_stop and token.id in self.parameters.stop_token_ids:
            self.finish = Finish(FinishReason.STOP, StopToken(token.id))
            if self.parameters.include_stop:
                self._append(token)
            return None
        if may_stop and token.id in self.eos_token_ids and not self.parameters.ignore_eos:
            self.finish = Finish(FinishReason.STOP, EndOfSequence(token.id))
            return None
        searched = len(self.text)
        self._append(token)
        match = self._stop_text(searched) if may_stop else None
        if match is not None:
            return self._stop_on_text(*match)
        if self.parameters.max_tokens is not None and len(self.tokens) >= self.parameters.max_tokens:
            self.finish = Finish(FinishReason.LENGTH)
        return None

    def _append(self, token: Token) -> None:
        self.tokens.append(_as_asked(token, self.parameters.logprobs))
        self.text += self._decoder.decode(token.piece)
        self.text_ends.append(len(self.text))

    def _flush(self) -> bool:
        """Show a character left incomplete as one replacement character; false if there is none."""
        if not self._decoder.getstate()[0]:
            return False
        self.text += self._decoder.decode(b"", final=True)
        self.text_ends[-1] = len(self.text)
        return True

    def _stop_text(self, searched: int) -> tuple[str, int] | None:
        """The stop string that is complete first, and where it begins; a match must end in new text."""
        best: tuple[int, int, str, int] | None = None
        for order, stop in enumerate(self.parameters.stop_texts):
            if not stop:
                continue
            start = self.text.find(stop, max(0, searched - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), order) < best[:2]):
                best = (start + len(stop), order, stop, start)
        return None if best is None else (best[2], best[3])

    def _stop_on_text(self, stop: str, start: int) -> tuple[int, int]:
        self.finish = Finish(FinishReason.STOP, StopText(stop))
        if self.parameters.include_stop:
            return len(self.tokens), start + len(stop)
        return tokens_before_text(self.text_ends, start), start


def tokens_before_text(text_ends: Sequence[int], position: int) -> int:
    """How many leading tokens have a text that begins before ``position`` (in characters).

    This is the rule for token records beside an excluded stop string: a token stays when some of its text
    may be visible. ``text_ends`` never falls; the first token begins at 0, each other one where the one
    before ends.
    """
    return 0 if position <= 0 else min(len(text_ends), 1 + bisect.bisect_left(text_ends, position))


def safe_length(text: str, stops: Iterable[str]) -> int:
    """How many characters of ``text`` cannot be part of a stop string, whatever comes next.

    The rest is the longest end of the text that begins some stop string (so overlapping restarts are right:
    ``"AAB"`` with stop ``"AB"`` keeps ``"A"`` safe).
    """
    safe = len(text)
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), 0, -1):
            if len(text) - length >= safe:
                break
            if text.endswith(stop[:length]):
                safe = len(text) - length
                break
    return safe


def _as_asked(token: Token, logprobs: int | None) -> Token:
    """The token with the scores that the request asked for, best candidates first."""
    if logprobs is None:
        return token if _is_bare(token) else replace(token, logprob=None, rank=None, candidates=())
    best = tuple(sorted(token.candidates, key=lambda candidate: candidate.rank)[:logprobs])
    return token if best == token.candidates else replace(token, candidates=best)


def _is_bare(token: Token) -> bool:
    return token.logprob is None and token.rank is None and not token.candidates


def prompt_as_asked(prompt: Sequence[Token], logprobs: int | None) -> tuple[Token, ...]:
    """The prompt's tokens with the scores that the request asked for; none when it asked for none."""
    return () if logprobs is None else tuple(_as_asked(token, logprobs) for token in prompt)
