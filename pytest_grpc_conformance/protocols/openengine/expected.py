"""The messages that a course has to give, by rule: the source of the goldens, without the servicer's code.

The rules, for a request whose course ends with a finish of every sequence:

1. Every message repeats the request's id. When prompt scores are asked for, one ``prompt`` message comes
   first, with every prompt token once (ids alone where the script has none) and no scores on the first.
2. Each engine result gives, for each sequence that it changes and in index order, one ``token`` message with
   all records and text that became visible with it (none when nothing did), and then ``finished`` when the
   sequence ended.
3. With excluded stop strings, while a sequence runs, its text is visible up to the earliest place from which
   all that follows could still be the beginning of a stop string; a token record is visible when its text
   begins before that place. Otherwise, and once the sequence has finished, all that the engine shows is
   visible.
4. ``usage`` is on the last message only: prompt length, visible tokens over all sequences, their sum, and the
   cached prompt tokens (absent when the engine cannot tell, never above the prompt's length).
5. ``stop_match`` is there for STOP and for no other reason. ``output_index`` is always there.
6. Scores are there only where they were asked for: the best candidates first and no more than asked; log
   probabilities within [-9999, 0], with -9999 for one that is not a number; no rank below 1.
7. ``TokenInfo.token``, ``LogProb.token`` and ``GenerationFinished.message`` are always empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_grpc_conformance.engines.course import Course, SequenceDelta
from pytest_grpc_conformance.engines.script import (
    EndOfSequence,
    Finish,
    FinishReason,
    Prompt,
    Script,
    StopText,
    StopToken,
    Token,
)
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.protocols.openengine.bindings import generation_pb2 as pb


def expected_messages(request: Request, prompt: Prompt, script: Script, course: Course) -> list[pb.GenerateResponse]:
    """The messages in order. Raises ``ValueError`` for a course that the rules do not cover."""
    if course.ending is not None:
        raise ValueError("only courses in which every sequence finishes have expected messages")
    if len(course.outcome) != (request.num_sequences or 1):
        raise ValueError(f"{len(course.outcome)} sequences in the script, {request.num_sequences or 1} asked for")
    messages = []
    if request.prompt_logprobs is not None:
        output = pb.PromptOutput(tokens=_prompt_infos(request.prompt_logprobs, prompt, script))
        messages.append(pb.GenerateResponse(request_id=request.request_id, prompt=output))
    excluded = [stop.text for stop in request.stops if isinstance(stop, StopText)]
    views = [_View([] if request.include_stop else excluded) for _ in course.outcome]
    for result in course.results:
        for delta in result.deltas:
            tokens, text = views[delta.index].newly_visible(delta)
            if tokens or text:
                infos = [_info(token, request.logprobs) for token in tokens]
                token_output = pb.TokenOutput(output_index=delta.index, tokens=infos, text=text)
                messages.append(pb.GenerateResponse(request_id=request.request_id, token=token_output))
            if delta.finish is not None:
                finished = _finished(delta.index, delta.finish)
                messages.append(pb.GenerateResponse(request_id=request.request_id, finished=finished))
    messages[-1].usage.CopyFrom(_usage(prompt, script, course))
    return messages


@dataclass(slots=True)
class _View:
    """One sequence as it grows, and how much of it has been visible so far."""

    excluded: Sequence[str]
    tokens: list[Token] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    """Where each token's text begins."""
    text: str = ""
    seen_tokens: int = 0
    seen_text: int = 0

    def newly_visible(self, delta: SequenceDelta) -> tuple[list[Token], str]:
        tokens, text = self._apply(delta)
        tokens_from, self.seen_tokens = self.seen_tokens, max(self.seen_tokens, tokens)
        text_from, self.seen_text = self.seen_text, max(self.seen_text, text)
        return self.tokens[tokens_from:tokens], self.text[text_from:text]

    def _apply(self, delta: SequenceDelta) -> tuple[int, int]:
        """Bring in what the result changes; how many tokens and characters are visible afterwards."""
        if delta.keep_tokens is not None:
            del self.tokens[delta.keep_tokens :], self.begins[delta.keep_tokens :]
        if delta.keep_text is not None:
            self.text = self.text[: delta.keep_text]
        begin = len(self.text)
        self.text += delta.text
        for token, end in zip(delta.tokens, delta.text_ends, strict=True):
            self.tokens.append(token)
            self.begins.append(begin)
            begin = end
        if delta.finish is not None or not self.excluded:
            return len(self.tokens), len(self.text)
        longest = max(len(stop) for stop in self.excluded)
        places = range(max(0, len(self.text) - longest), len(self.text) + 1)
        place = next(at for at in places if self._is_undecided(self.text[at:]))
        return sum(begin < place for begin in self.begins), place

    def _is_undecided(self, rest: str) -> bool:
        return not rest or any(len(rest) < len(stop) and stop.startswith(rest) for stop in self.excluded)


def _prompt_infos(count: int, prompt: Prompt, script: Script) -> list[pb.TokenInfo]:
    if not script.prompt:
        return [pb.TokenInfo(token_id=token_id) for token_id in prompt.token_ids]
    first, *others = script.prompt
    return [pb.TokenInfo(token_id=first.id), *(_info(token, count) for token in others)]


def _info(token: Token, count: int | None) -> pb.TokenInfo:
    info = pb.TokenInfo(token_id=token.id)
    if count is None:
        return info
    if token.logprob is not None:
        info.logprob = _bounded(token.logprob)
    if token.rank is not None and token.rank >= 1:
        info.rank = token.rank
    for candidate in sorted(token.candidates, key=lambda candidate: candidate.rank)[:count]:
        entry = info.candidates.add(token_id=candidate.token_id, logprob=_bounded(candidate.logprob))
        if candidate.rank >= 1:
            entry.rank = candidate.rank
    return info


def _bounded(logprob: float) -> float:
    if not logprob >= -9999.0:
        return -9999.0
    return 0.0 if logprob >= 0.0 else logprob


def _finished(index: int, finish: Finish) -> pb.GenerationFinished:
    finished = pb.GenerationFinished(output_index=index)
    if finish.reason is FinishReason.LENGTH:
        finished.reason = pb.FINISH_REASON_LENGTH
    elif finish.reason is FinishReason.CANCELLED:
        finished.reason = pb.FINISH_REASON_CANCELLED
    else:
        finished.reason = pb.FINISH_REASON_STOP
        if isinstance(finish.match, StopText):
            finished.stop_match.stop_text = finish.match.text
        elif isinstance(finish.match, StopToken):
            finished.stop_match.stop_token_id = finish.match.token_id
        elif isinstance(finish.match, EndOfSequence):
            finished.stop_match.eos_token_id = finish.match.token_id
        else:
            raise ValueError("the script stops a sequence without saying on what")
    return finished


def _usage(prompt: Prompt, script: Script, course: Course) -> pb.Usage:
    prompt_tokens = len(prompt.token_ids)
    usage = pb.Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=course.completion_tokens,
        total_tokens=prompt_tokens + course.completion_tokens,
    )
    if script.cached_tokens is not None:
        usage.cached_prompt_tokens = min(script.cached_tokens, prompt_tokens)
    return usage
