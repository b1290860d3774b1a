"""Stop conditions: where an output is cut, what of the stop is shown, and what is held back meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.script import (
    Advance,
    EndOfSequence,
    Finish,
    FinishReason,
    Script,
    Step,
    StopText,
    StopToken,
    Token,
    in_steps,
    one_by_one,
    pieces,
    script,
    tokens,
)
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.protocols.collected import Collected
from pytest_grpc_conformance.targets.base import Target

EOS = Token(2)
AB = (StopText("AB"),)
Stop = StopText | StopToken


def _answer(target: Target, told: Script, *stops: Stop, include: bool | None = False, **fields: Any) -> Collected:
    """The whole answer to a request with these stops."""
    request = Request("stop", stops=stops, include_stop=include, **fields)
    return asserts.succeeded(target.play(told, request), request)


def _shows(target: Target, collected: Collected, *expected: Token) -> None:
    """Sequence 0 has exactly these tokens with their text, also in a terminal message that repeats it."""
    received = collected.sequences[0]
    asserts.token_ids(expected, received.tokens, "sequence 0")
    for finish in received.finishes:
        if finish.output is not None:
            asserts.token_ids(expected, finish.output, "the terminal message")
    _text_is(target, collected, b"".join(token.piece for token in expected).decode())


def _text_is(target: Target, collected: Collected, text: str) -> None:
    """The text of sequence 0, in a protocol that has any."""
    if target.protocol.traits.carries_text:
        asserts.text(text, collected.sequences[0].text, "sequence 0")


def _tokens_but_eos(collected: Collected, *expected: Token) -> None:
    """Sequence 0 has these tokens. Whether an end-of-sequence token is shown is left open."""
    ours = [token for token in expected if token.id != EOS.id]
    theirs = [token for token in collected.sequences[0].tokens if token.id != EOS.id]
    asserts.token_ids(ours, theirs, "sequence 0")


def _stopped_on(collected: Collected, *stops: Stop) -> None:
    finish = collected.sequences[0].finishes[0].finish
    allowed = [Finish(FinishReason.STOP, stop) for stop in stops]
    asserts.true(f"sequence 0 ended on one of {stops}", finish in allowed, finish)


# What of a matched stop is shown.


@requirement("OE-STOP-001", "SMG-SMP-010", "SMG-SMP-015", needs=(SCRIPTED,))
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 2), (1, 3)], ids=["ones", "twos", "three-at-last"])
def test_included_stop_text_is_shown(grpc_target: Target, sizes: tuple[int, ...]) -> None:
    """The server MUST show the matched stop text as the tail of the output when it is to be included."""
    told = pieces("x", "A", "B", "y")
    collected = _answer(grpc_target, script(in_steps(told, sizes)), *AB, include=True)
    _shows(grpc_target, collected, *told[:3])


@requirement("OE-STOP-002", "SMG-SMP-009", "SMG-SMP-015", needs=(SCRIPTED,))
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 2), (3,)], ids=["ones", "two-at-last", "one-step"])
def test_included_stop_token_is_shown(grpc_target: Target, sizes: tuple[int, ...]) -> None:
    """The server MUST show the matched stop token as the last one when it is to be included."""
    told = pieces("x", "S", "y", start=200)
    collected = _answer(grpc_target, script(in_steps(told, sizes)), StopToken(201), include=True)
    _shows(grpc_target, collected, *told[:2])


@requirement("OE-STOP-003", "SMG-SMP-010", "SMG-SMP-015", needs=(SCRIPTED,))
@pytest.mark.parametrize(
    ("texts", "sizes"),
    [
        (("x", "ABC", "y"), (1, 1, 1)),
        (("x", "A", "BC", "y"), (1, 1, 1, 1)),
        (("x", "A", "B", "C", "D"), (2, 2, 1)),
        (("x", "A", "B", "C", "D"), (5,)),
    ],
    ids=["one-token", "two-tokens", "three-tokens", "one-step"],
)
def test_excluded_stop_text_is_not_shown(grpc_target: Target, texts: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    """The server MUST show no part of the matched stop text when it is to be excluded."""
    told = pieces(*texts)
    _shows(grpc_target, _answer(grpc_target, script(in_steps(told, sizes)), StopText("ABC")), told[0])


@requirement("OE-STOP-004", "SMG-SMP-009", "SMG-SMP-015", needs=(SCRIPTED,))
@pytest.mark.parametrize(
    ("token_id", "sizes"),
    [(201, (1, 1, 1)), (0, (1, 1, 1)), (201, (3,))],
    ids=["own-step", "id-zero", "one-step"],
)
def test_excluded_stop_token_is_not_shown(grpc_target: Target, token_id: int, sizes: tuple[int, ...]) -> None:
    """The server MUST not show the matched stop token when it is to be excluded, id 0 included."""
    told = (Token(200, b"x"), Token(token_id, b"S"), Token(202, b"y"))
    _shows(grpc_target, _answer(grpc_target, script(in_steps(told, sizes)), StopToken(token_id)), told[0])


@requirement("SMG-SMP-015", needs=(SCRIPTED,))
@pytest.mark.parametrize("stop", [StopText("AB"), StopToken(102)], ids=["text", "token"])
def test_stop_is_excluded_by_default(grpc_target: Target, stop: Stop) -> None:
    """The server MUST leave the matched stop out of the output when the request does not say."""
    told = pieces("x", "A", "B", "y")
    collected = _answer(grpc_target, script(one_by_one(told)), stop, include=None)
    _shows(grpc_target, collected, *told[: 1 if isinstance(stop, StopText) else 2])


@requirement("OE-STOP-010", "SMG-SMP-010", needs=(SCRIPTED,))
@pytest.mark.parametrize(("include", "shown"), [(False, "x"), (True, "xAB")], ids=["excluded", "included"])
def test_text_after_the_match_is_not_shown(grpc_target: Target, include: bool, shown: str) -> None:
    """The server MUST not send text that follows the match in the same token."""
    told = script(one_by_one(pieces("xABy", "z")))
    collected = _answer(grpc_target, told, *AB, include=include)
    _text_is(grpc_target, collected, shown)
    _stopped_on(collected, *AB)


@requirement("OE-STOP-003", "OE-STOP-012", "SMG-SMP-015", needs=(SCRIPTED,))
@pytest.mark.parametrize("include", [False, True], ids=["excluded", "included"])
def test_tokens_after_the_match_are_not_shown(grpc_target: Target, include: bool) -> None:
    """The server MUST not send tokens that the engine produced after the match in the same step."""
    told = pieces("x", "A", "B", "y", "z")
    collected = _answer(grpc_target, script(in_steps(told, (5,))), *AB, include=include)
    _shows(grpc_target, collected, *told[: 3 if include else 1])


@requirement("OE-STOP-012", "SMG-CHK-012", "SMG-CHK-003", needs=(SCRIPTED,))
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 1)], ids=["ones", "two-and-one"])
def test_tokens_of_an_excluded_stop_are_withheld(grpc_target: Target, sizes: tuple[int, ...]) -> None:
    """The server SHOULD withhold the tokens of an excluded stop text of several tokens."""
    told = pieces("x", "A", "B")
    _shows(grpc_target, _answer(grpc_target, script(in_steps(told, sizes)), *AB), told[0])


# Finding the match.


@requirement("OE-STOP-009", "SMG-SMP-011", needs=(SCRIPTED,))
@pytest.mark.parametrize(
    "texts",
    [("x", "ABC", "y"), ("xA", "BC", "y"), ("x", "A", "B", "C", "y"), ("xABCy",), ("xAB", "Cy")],
    ids=["own-token", "over-a-border", "three-tokens", "inside-a-token", "over-a-border-with-more"],
)
def test_stop_text_is_found_in_any_token_split(grpc_target: Target, texts: tuple[str, ...]) -> None:
    """The server SHOULD find a stop text whatever tokens it is made of."""
    collected = _answer(grpc_target, script(one_by_one(pieces(*texts))), StopText("ABC"))
    _text_is(grpc_target, collected, "x")
    _stopped_on(collected, StopText("ABC"))


@requirement("OE-STOP-008", "SMG-SMP-010", needs=(SCRIPTED,))
@pytest.mark.parametrize(
    ("output", "stop", "shown"),
    [("AAB", "AB", "A"), ("ABAC", "ABAD", "ABAC"), ("ABABAC", "ABAC", "AB"), ("AAAAB", "AAB", "AA")],
    ids=["restart", "failed-restart", "restart-inside", "long-run"],
)
def test_match_that_begins_inside_a_failed_one_counts(grpc_target: Target, output: str, stop: str, shown: str) -> None:
    """The server MUST see a stop text that begins inside an attempt that failed."""
    told = pieces(*output)
    collected = _answer(grpc_target, script(one_by_one(told)), StopText(stop))
    _shows(grpc_target, collected, *told[: len(shown)])


@requirement("OE-STOP-011", "SMG-CMP-005", needs=(SCRIPTED,))
@pytest.mark.parametrize("split", [("xABCD",), ("x", "A", "B", "C", "D")], ids=["one-token", "ones"])
def test_match_that_completes_first_wins(grpc_target: Target, split: tuple[str, ...]) -> None:
    """The server SHOULD stop on the stop text that is complete first, whatever their order in the request."""
    collected = _answer(
        grpc_target, script(one_by_one(pieces(*split))), StopText("ABCD"), StopText("CD"), StopText("BC")
    )
    _text_is(grpc_target, collected, "xA")
    _stopped_on(collected, StopText("BC"))


@requirement("OE-STOP-011", "SMG-CMP-005", needs=(SCRIPTED,))
@pytest.mark.parametrize("order", [("BC", "ABC"), ("ABC", "BC")], ids=["short-first", "long-first"])
def test_one_of_two_stops_that_end_together_is_named(grpc_target: Target, order: tuple[str, str]) -> None:
    """The server SHOULD name a stop text that really ends there when two are complete at once."""
    stops = [StopText(text) for text in order]
    collected = _answer(grpc_target, script(one_by_one(pieces("x", "A", "B", "C", "y"))), *stops)
    _stopped_on(collected, *stops)


@requirement("OE-STOP-017", "SMG-SMP-009", "SMG-SMP-010", needs=(SCRIPTED,))
@pytest.mark.parametrize(
    "stop",
    [StopText("PP"), StopText("QQ"), StopToken(0), StopToken(201)],
    ids=["text-1", "text-2", "id-1", "id-2"],
)
def test_every_stop_condition_is_active(grpc_target: Target, stop: Stop) -> None:
    """The server SHOULD keep every stop condition of a request active, texts and tokens alike."""
    ending = Token(300, stop.text.encode()) if isinstance(stop, StopText) else Token(stop.token_id, b"S")
    stops = (StopToken(0), StopText("PP"), StopToken(201), StopText("QQ"))
    told = script(one_by_one((*tokens(2), ending, *tokens(2))))
    _stopped_on(_answer(grpc_target, told, *stops), stop)


# Holding back.


@requirement("OE-STOP-005", "SMG-CHK-012", needs=(SCRIPTED,))
@pytest.mark.parametrize(
    ("texts", "before"),
    [(("DE", "FG"), ""), (("D", "E", "F", "G"), ""), (("xDE", "FG"), "x")],
    ids=["two", "four", "inside"],
)
def test_beginning_of_a_stop_is_not_shown(grpc_target: Target, texts: tuple[str, ...], before: str) -> None:
    """The server MUST hold text back that may turn out to begin an excluded stop."""
    told = pieces(*texts)
    gate = grpc_target.prepare("stop", script(one_by_one(told)))
    request = Request("stop", stops=(StopText("DEFG"),), include_stop=False)
    stream = grpc_target.generate(request)
    for at in range(len(told)):
        gate.release(1)
        asserts.reached(gate.delivered(at + 1), "each engine result is taken")
    collected = asserts.succeeded(stream, request)
    _text_is(grpc_target, collected, before)
    leaked = {token.id for token in told[len(before) :]} & set(collected.sequences[0].token_ids)
    asserts.equal("the tokens of the stop that were sent", set(), leaked)


@requirement("OE-STOP-006", "SMG-CHK-003", needs=(SCRIPTED,))
@pytest.mark.parametrize("texts", [("A", "C"), ("A", "B", "D"), ("xA", "A", "y")], ids=["one", "two", "twice"])
def test_held_text_comes_when_the_match_fails(grpc_target: Target, texts: tuple[str, ...]) -> None:
    """The server MUST send held text unchanged as soon as it cannot be a stop any more."""
    told = pieces(*texts, "end")
    gate = grpc_target.prepare("fails", script(one_by_one(told)))
    request = Request("fails", stops=(StopText("ABC"),), include_stop=False)
    stream = grpc_target.generate(request)
    gate.release(len(texts))
    asserts.token_ids(told[:-1], asserts.tokens_until(stream, len(texts), gate), "what is undecided no more")
    gate.release_all()
    _shows(grpc_target, asserts.succeeded(stream, request), *told)


@requirement("OE-STOP-007", "OE-TOK-007", "SMG-CHK-003", needs=(SCRIPTED,))
@pytest.mark.parametrize(
    ("ending", "fields"), [((), {"max_tokens": 3}), ((), {}), ((EOS,), {})], ids=["limit", "window", "eos"]
)
def test_held_text_comes_when_the_output_ends(
    grpc_target: Target, ending: tuple[Token, ...], fields: dict[str, Any]
) -> None:
    """The server MUST send held text before the end of a sequence that ends without the stop."""
    told = pieces("x", "A", "B")
    collected = _answer(grpc_target, script(one_by_one((*told, *ending))), StopText("ABC"), **fields)
    _shows(grpc_target, collected, *told)


@requirement("OE-STOP-013", "SMG-GEN-016", needs=(SCRIPTED,))
def test_holding_one_sequence_back_delays_no_other(grpc_target: Target) -> None:
    """The server SHOULD hold back per sequence and send the others meanwhile."""
    told = pieces("q", "r", start=200)
    first = Step((Advance(0, pieces("A")), Advance(1, told[:1])))
    gate = grpc_target.prepare("both", script(first, Step((Advance(1, told[1:]),))))
    request = Request("both", stops=AB, include_stop=False, num_sequences=2, temperature=1.0)
    stream = grpc_target.generate(request)
    gate.release(1)
    event = asserts.next_tokens(stream, gate)
    asserts.equal("the sequence that comes at once", 1, event.index)
    gate.release_all()
    collected = asserts.succeeded(stream, request)
    asserts.token_ids(told, collected.sequences[1].tokens, "sequence 1")
    asserts.token_ids(pieces("A"), collected.sequences[0].tokens, "sequence 0")


@requirement("OE-STOP-014", "SMG-GEN-016", needs=(SCRIPTED,))
def test_included_stop_holds_nothing_back(grpc_target: Target) -> None:
    """The server SHOULD send text at once that may begin a stop which stays in the output."""
    told = pieces("A", "C")
    gate = grpc_target.prepare("flows", script(one_by_one(told)))
    stream = grpc_target.generate(Request("flows", stops=AB, include_stop=True))
    gate.release(1)
    asserts.token_ids(told[:1], asserts.tokens_until(stream, 1, gate), "what comes at once")
    gate.release_all()
    asserts.ended(stream, gate)


@requirement("OE-GEN-018", "SMG-GEN-016", needs=(SCRIPTED,))
@pytest.mark.parametrize("stop", [StopText("QQQQQQ"), StopToken(7)], ids=["text", "token"])
def test_unrelated_text_is_not_delayed(grpc_target: Target, stop: Stop) -> None:
    """The server SHOULD send text at once that cannot begin any stop of the request."""
    told = pieces("a", "b", "c")
    gate = grpc_target.prepare("unrelated", script(one_by_one(told)))
    stream = grpc_target.generate(Request("unrelated", stops=(stop,), include_stop=False))
    for at in range(2):
        gate.release(1)
        asserts.token_ids(told[at : at + 1], asserts.tokens_until(stream, 1, gate), f"step {at + 1}")
    gate.release_all()
    asserts.ended(stream, gate)


# What delays or forbids a stop.


@requirement("OE-GEN-029", "SMG-SMP-008", needs=(SCRIPTED,))
@pytest.mark.parametrize("stop", [StopText("!"), StopToken(300), EndOfSequence(2)], ids=["text", "token", "eos"])
def test_minimum_of_tokens_delays_every_stop(grpc_target: Target, stop: StopText | StopToken | EndOfSequence) -> None:
    """The server SHOULD not stop before the minimum of tokens exists, whatever the cause."""
    ending = EOS if isinstance(stop, EndOfSequence) else Token(300, b"!")
    told = (*tokens(1), ending, *tokens(2, start=110), ending, *tokens(1, start=120))
    stops = () if isinstance(stop, EndOfSequence) else (stop,)
    collected = _answer(grpc_target, script(one_by_one(told)), *stops, min_tokens=3)
    _tokens_but_eos(collected, *told[:4])
    end = Finish(FinishReason.STOP, stop)
    asserts.finished(collected.sequences[0].finishes[0], end, grpc_target.protocol, "sequence 0")


@requirement("OE-GEN-030", "OE-FIN-012", "SMG-SMP-012", needs=(SCRIPTED,))
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (4,)], ids=["ones", "one-step"])
def test_end_of_sequence_can_be_ignored(grpc_target: Target, sizes: tuple[int, ...]) -> None:
    """The server SHOULD go on past the end of sequence when it is to be ignored."""
    told = (*tokens(2), EOS, *tokens(1, start=110))
    collected = _answer(grpc_target, script(in_steps(told, sizes)), ignore_eos=True)
    _tokens_but_eos(collected, *told)
    asserts.equal("the finish", Finish(FinishReason.LENGTH), collected.sequences[0].finishes[0].finish)


def _ignored_or_refused(target: Target, request: Request) -> None:
    """The stop of the request is refused, or stops nothing and holds nothing back."""
    told = tokens(3)
    gate = target.prepare(request.request_id, script(one_by_one(told)), open=True)
    collected = asserts.ended(target.generate(request), gate)
    if collected.status.ok:
        asserts.ordered(collected, request, target.protocol)
        _shows(target, collected, *told)
    else:
        asserts.refused(collected, "INVALID_ARGUMENT")


@requirement("OE-STOP-016", needs=(SCRIPTED,))
def test_empty_stop_text_stops_nothing(grpc_target: Target) -> None:
    """The server SHOULD refuse or ignore an empty stop text, and neither stop on it nor hold back for it."""
    _ignored_or_refused(grpc_target, Request("empty", stops=(StopText(""),), include_stop=False))


@requirement("OE-STOP-018", needs=(SCRIPTED,))
def test_stop_token_outside_the_vocabulary_never_matches(grpc_target: Target) -> None:
    """The server SHOULD refuse a stop token outside the vocabulary, or never stop on it."""
    _ignored_or_refused(grpc_target, Request("outside", stops=(StopToken(2**32 - 1),)))
