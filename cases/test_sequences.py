"""Several sequences in one request: each has its own tokens, its own end, and nothing of the others."""

from __future__ import annotations

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.script import (
    Advance,
    Finish,
    FinishReason,
    Script,
    Step,
    StopText,
    Token,
    one_by_one,
    pieces,
    script,
    side_by_side,
    tokens,
)
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import FinishEvent, Request, TokensEvent
from pytest_grpc_conformance.protocols.collected import Collected
from pytest_grpc_conformance.targets.base import Target

PATTERNS = {
    "0-1-1-0": "0110",
    "index-1-first": "1100",
    "turns": "010101",
    "one-after-the-other": "000111",
    "three": "021102210",
}
LENGTH = Finish(FinishReason.LENGTH)


def _several(request_id: str, count: int) -> Request:
    """A request for several sequences, which need a temperature to differ."""
    return Request(request_id, num_sequences=count, temperature=1.0)


def _interleaved(pattern: str) -> Script:
    """One token per step, of the sequence that the pattern's digit names; ids and text tell whose it is."""
    steps = []
    for at, digit in enumerate(pattern):
        token = Token(1000 * (1 + int(digit)) + at, f" {digit}.{at}".encode())
        steps.append(Step((Advance(int(digit), (token,)),)))
    return script(steps)


def _as_told(target: Target, told: Script, request: Request) -> Collected:
    """The whole answer, in which every sequence has its own tokens, text and end."""
    collected = asserts.succeeded(target.play(told, request), request)
    for index, expected in enumerate(course(told, request.parameters()).outcome):
        asserts.sequence(collected.sequences[index], expected, index, request, target.protocol)
    return collected


@requirement("OE-GEN-009", "SMG-N-002", needs=(SCRIPTED,))
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_interleaved_sequences_stay_apart(grpc_target: Target, pattern: str) -> None:
    """The server MUST give each sequence its own tokens, whatever the order of engine steps."""
    told = _interleaved(pattern)
    _as_told(grpc_target, told, _several("apart", told.num_sequences))


@requirement("OE-TOK-010", "SMG-N-002", needs=(SCRIPTED,))
def test_deltas_of_unequal_sequences_stay_apart(grpc_target: Target) -> None:
    """The server MUST keep what it has sent per sequence, also when their lengths differ at every step."""
    long, short = pieces("aaa", "a", "aa", "aaaa", start=100), pieces("b", "", "bbbbbbb", start=200)
    steps = (
        Step((Advance(0, long[:2]), Advance(1))),
        Step((Advance(1, short[:2]),)),
        Step((Advance(0, long[2:3]), Advance(1, short[2:]))),
        Step((Advance(0, long[3:]),)),
    )
    _as_told(grpc_target, script(steps), _several("unequal", 2))


@requirement("OE-N-003", "SMG-N-001", needs=(SCRIPTED,))
@pytest.mark.parametrize("count", [1, 2, 4], ids=lambda count: f"n={count}")
def test_each_sequence_that_was_asked_for_comes(grpc_target: Target, count: int) -> None:
    """The server MUST send the sequences 0 to k-1 when k are asked for, and finish each one once."""
    told = script(side_by_side(*(tokens(2 + at, start=100 * (at + 1)) for at in range(count))))
    _as_told(grpc_target, told, _several("count", count))


@requirement("SMG-N-001", needs=(SCRIPTED,))
@pytest.mark.parametrize("count", [2, 4], ids=lambda count: f"n={count}")
def test_each_sequence_comes_without_streaming(grpc_target: Target, count: int) -> None:
    """The server SHOULD send one final message per sequence when k are asked for without streaming."""
    told = script(side_by_side(*(tokens(2 + at, start=100 * (at + 1)) for at in range(count))))
    _as_told(grpc_target, told, _several("unary", count).but(streaming=False))


@requirement("OE-N-001", "SMG-SMP-004")
def test_absent_number_means_one_sequence(grpc_target: Target) -> None:
    """The server MUST send one sequence when the request does not say how many."""
    request = Request("absent", max_tokens=3, ignore_eos=True)
    if SCRIPTED in grpc_target.capabilities:
        grpc_target.prepare("absent", script(one_by_one(tokens(3))), open=True)
    collected = asserts.succeeded(grpc_target.generate(request), request)
    asserts.equal("the sequences", {0}, set(collected.sequences))


@requirement("OE-GEN-007", "SMG-CHK-002", needs=(SCRIPTED,))
@pytest.mark.parametrize("pattern", ["0110", "1100"], ids=["index-0-first", "index-1-first"])
def test_each_token_message_names_its_sequence(grpc_target: Target, pattern: str) -> None:
    """The server MUST name the sequence on every token message, index 0 included."""
    request = _several("named", 2)
    collected = asserts.ended(grpc_target.play(_interleaved(pattern), request))
    for item in collected.received:
        if isinstance(item.event, TokensEvent):
            for token in item.event.tokens:
                asserts.equal(f"the index with token {token.id}", token.id // 1000 - 1, item.event.index)


@requirement("OE-GEN-008", "SMG-N-001", needs=(SCRIPTED,))
@pytest.mark.parametrize("pattern", ["0110", "1100"], ids=["index-0-first", "index-1-first"])
def test_each_terminal_message_names_its_sequence(grpc_target: Target, pattern: str) -> None:
    """The server MUST name the sequence on every terminal message, index 0 included."""
    collected = asserts.ended(grpc_target.play(_interleaved(pattern), _several("ends", 2)))
    ends = [item.event.index for item in collected.received if isinstance(item.event, FinishEvent)]
    asserts.equal("the indexes of the terminal messages", {0, 1}, set(ends))


@requirement("OE-N-005", "SMG-N-003", needs=(SCRIPTED,))
@pytest.mark.parametrize("order", [(1, 0), (2, 0, 1), (0, 2, 1)], ids=lambda order: "-".join(map(str, order)))
def test_sequences_end_in_any_order(grpc_target: Target, order: tuple[int, ...]) -> None:
    """The server MUST let sequences end in any order and at different times."""
    stop = StopText("!")
    told = {index: pieces("a", "!" if index else "b", start=100 * (1 + index)) for index in order}
    ends = [Step((Advance(index, told[index]),)) for index in order]
    request = _several("any", len(order)).but(stops=(stop,), include_stop=True)
    _as_told(grpc_target, script(ends), request)


@requirement("OE-GEN-013", "SMG-N-003", needs=(SCRIPTED,))
@pytest.mark.parametrize("first", [0, 1, 2], ids=lambda first: f"first={first}")
def test_early_end_of_one_sequence_leaves_the_others(grpc_target: Target, first: int) -> None:
    """The server MUST go on with the other sequences when one of them has ended."""
    others = [index for index in range(3) if index != first]
    end = Step((Advance(first, tokens(1, start=10), LENGTH),))
    told = {index: tokens(3, start=1000 + 100 * index) for index in others}
    rest = [Step(tuple(Advance(index, told[index][at : at + 1]) for index in others)) for at in range(3)]
    gate = grpc_target.prepare("early", script(end, rest))
    request = _several("early", 3)
    stream = grpc_target.generate(request)
    gate.release(1)
    asserts.next_tokens(stream, gate)
    gate.release_all()
    collected = asserts.succeeded(stream, request)
    lengths = {index: len(sequence.tokens) for index, sequence in collected.sequences.items()}
    asserts.equal("the tokens per sequence", {first: 1, others[0]: 3, others[1]: 3}, lengths)


@requirement("OE-N-006", "SMG-CMP-002", needs=(SCRIPTED,))
@pytest.mark.parametrize("count", [2, 4], ids=lambda count: f"n={count}")
def test_ends_in_one_step_are_told_one_by_one(grpc_target: Target, count: int) -> None:
    """The server MUST send one terminal message per sequence when all end in the same engine step."""
    told = script(Step(tuple(Advance(at, tokens(2, start=100 * (at + 1)), LENGTH) for at in range(count))))
    collected = _as_told(grpc_target, told, _several("together", count))
    if not grpc_target.protocol.traits.usage_per_sequence:
        asserts.usage_only_on_last(collected)


@requirement("OE-GEN-011", "SMG-CMP-002", needs=(SCRIPTED,))
def test_sequence_without_tokens_ends_too(grpc_target: Target) -> None:
    """The server MUST send a terminal message for a sequence that has no tokens."""
    first = Step((Advance(0, tokens(2)), Advance(1, (), LENGTH)))
    told = script(first, Step((Advance(0, tokens(1, start=300)),)))
    collected = _as_told(grpc_target, told, _several("empty", 2))
    asserts.equal("the token messages of sequence 1", 0, collected.sequences[1].token_messages)
