"""The end of a sequence: why it ended, what stopped it, once and last."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.course import course
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
from pytest_grpc_conformance.protocols.base import FinishEvent, Request
from pytest_grpc_conformance.protocols.collected import Collected
from pytest_grpc_conformance.targets.base import Target

EOS = Token(2, b"")
"""The fake engine's end-of-sequence token."""
LENGTH = Finish(FinishReason.LENGTH)
TOLD = pieces("a", "b", "!", "c")
ENDINGS: dict[str, tuple[tuple[Token, ...], dict[str, Any]]] = {
    "stop-text": (TOLD, {"stops": (StopText("!"),), "include_stop": True}),
    "stop-token": (TOLD, {"stops": (StopToken(102),), "include_stop": True}),
    "eos": ((*TOLD[:2], EOS, TOLD[3]), {}),
    "limit": (TOLD, {"max_tokens": 3}),
    "window": (TOLD, {}),
}


def _finish(collected: Collected, index: int = 0) -> FinishEvent:
    return collected.sequences[index].finishes[0]


def _ends_as_told(target: Target, told: Script, request: Request) -> Collected:
    """The whole answer, in which every sequence has the reason and the match of the script."""
    collected = asserts.succeeded(target.play(told, request), request)
    parameters, eos = request.parameters(), target.engine.eos_token_ids
    for index, expected in enumerate(course(told, parameters, eos).outcome):
        asserts.finished(_finish(collected, index), expected.finish, target.protocol, f"sequence {index}")
    return collected


@requirement("OE-GEN-011", "OE-GEN-012", "OE-USE-002", "SMG-CMP-002", "SMG-GEN-013", needs=(SCRIPTED,))
@pytest.mark.parametrize("ending", ENDINGS)
def test_terminal_message_is_complete(grpc_target: Target, ending: str) -> None:
    """The server MUST end a stream with one message that has reason, match and usage, and then with OK."""
    told, options = ENDINGS[ending]
    collected = _ends_as_told(grpc_target, script(one_by_one(told)), Request("whole", **options))
    last = collected.received[-1].event
    asserts.true("the last message carries usage", last.usage is not None, "no usage")


@requirement("OE-FIN-001", "OE-FIN-003", "SMG-CMP-005", needs=(SCRIPTED,))
@pytest.mark.parametrize("stop", ["!", "c", "b!"])
def test_matched_stop_text_is_named(grpc_target: Target, stop: str) -> None:
    """The server MUST name the stop text that ended a sequence as the caller gave it."""
    others = (StopText("zzz"), StopText(stop), StopText("?"), StopToken(7))
    _ends_as_told(grpc_target, script(one_by_one(TOLD)), Request("text", stops=others))


@requirement("OE-FIN-001", "OE-FIN-002", "SMG-CMP-006", needs=(SCRIPTED,))
@pytest.mark.parametrize("token_id", [0, 102, 2**31 - 1], ids=lambda token_id: f"id={token_id}")
def test_matched_stop_token_is_named(grpc_target: Target, token_id: int) -> None:
    """The server MUST name the stop token that ended a sequence, id 0 included."""
    told = (*TOLD[:2], Token(token_id, b"!"), TOLD[3])
    stops = (StopText("zzz"), StopToken(7), StopToken(token_id))
    _ends_as_told(grpc_target, script(one_by_one(told)), Request("token", stops=stops))


@requirement("OE-FIN-001", "OE-FIN-004", "SMG-CMP-007", needs=(SCRIPTED,))
@pytest.mark.parametrize("eos", [0, 2], ids=lambda eos: f"id={eos}")
def test_end_of_sequence_is_reported_as_such(grpc_target: Target, eos: int) -> None:
    """The server MUST report the model's own end of sequence as such, and not as a stop of the caller."""
    grpc_target.engine.eos_token_ids = frozenset({eos})
    told = (*TOLD[:2], Token(eos), TOLD[3])
    _ends_as_told(grpc_target, script(one_by_one(told)), Request("eos", stops=(StopText("zzz"),)))


@requirement("OE-FIN-005", "SMG-CMP-007", needs=(SCRIPTED,))
@pytest.mark.parametrize("eos", [2, 3], ids=lambda eos: f"id={eos}")
def test_each_of_several_end_of_sequence_ids_ends(grpc_target: Target, eos: int) -> None:
    """The server SHOULD end on each of several end-of-sequence ids and report the one that occurred."""
    grpc_target.engine.eos_token_ids = frozenset({2, 3})
    told = (Token(9, b"a"), Token(eos), Token(9, b"b"))
    _ends_as_told(grpc_target, script(one_by_one(told)), Request("several-eos"))


@requirement("OE-FIN-001", "SMG-SMP-019", needs=(SCRIPTED,))
def test_stop_token_that_is_end_of_sequence_too_stops(grpc_target: Target) -> None:
    """The server MUST end with a stop on an id that is a stop token and an end of sequence at once."""
    request = Request("both", stops=(StopToken(2),))
    collected = asserts.succeeded(grpc_target.play(script(one_by_one((*TOLD, EOS, *TOLD))), request), request)
    finish = _finish(collected).finish
    allowed = [Finish(FinishReason.STOP, match) for match in (StopToken(2), EndOfSequence(2))]
    if not grpc_target.protocol.traits.reports_eos:
        allowed.append(Finish(FinishReason.STOP))
    asserts.true("the sequence ended on id 2", finish in allowed, finish)


@requirement("OE-FIN-006", "SMG-CMP-007", needs=(SCRIPTED,))
@pytest.mark.parametrize("limit", [3, 4096], ids=["limit", "window"])
def test_length_has_no_match(grpc_target: Target, limit: int) -> None:
    """The server SHOULD report no match when the length ended the sequence, also beside stop conditions."""
    request = Request("no-match", max_tokens=limit, stops=(StopText("zzz"), StopToken(0)))
    collected = asserts.succeeded(grpc_target.play(script(one_by_one(TOLD)), request), request)
    asserts.equal("the finish", LENGTH, _finish(collected).finish)


@requirement("OE-FIN-008", "OE-GEN-028", "SMG-CMP-004", "SMG-SMP-007", needs=(SCRIPTED,))
@pytest.mark.parametrize(
    ("limit", "sizes"),
    [(1, (1, 1, 1, 1)), (3, (1, 1, 1, 1)), (3, (2, 2)), (3, (4,))],
    ids=["first-token", "ones", "twos", "one-step"],
)
def test_token_limit_ends_with_length(grpc_target: Target, limit: int, sizes: tuple[int, ...]) -> None:
    """The server SHOULD end each sequence at the token limit, with reason length."""
    request = Request("limit", max_tokens=limit)
    collected = _ends_as_told(grpc_target, script(in_steps(TOLD, sizes)), request)
    asserts.token_ids(TOLD[:limit], collected.sequences[0].tokens, "sequence 0")


@requirement("OE-FIN-008", "OE-GEN-028", "SMG-CMP-004", "SMG-SMP-007")
def test_token_limit_holds(grpc_target: Target) -> None:
    """The server SHOULD send as many tokens as the limit allows when nothing else ends the sequence."""
    request = Request("bound", max_tokens=3, ignore_eos=True)
    if SCRIPTED in grpc_target.capabilities:
        grpc_target.prepare("bound", script(one_by_one(tokens(9))), open=True)
    collected = asserts.succeeded(grpc_target.generate(request), request)
    asserts.equal("the number of tokens", 3, len(collected.sequences[0].tokens))
    asserts.equal("the finish", LENGTH, _finish(collected).finish)


@requirement("OE-FIN-008", "SMG-CMP-004", needs=(SCRIPTED,))
def test_full_window_ends_with_length(grpc_target: Target) -> None:
    """The server SHOULD report reason length when the context window is full before the token limit."""
    _ends_as_told(grpc_target, script(one_by_one(TOLD)), Request("window", max_tokens=1000))


@requirement("OE-FIN-007", "SMG-CMP-003", needs=(SCRIPTED,))
@pytest.mark.parametrize("finish", [LENGTH, Finish(FinishReason.STOP, EndOfSequence(2))], ids=["length", "eos"])
@pytest.mark.parametrize("count", [2, 0], ids=["empty-step", "no-tokens"])
def test_reason_is_known_after_an_empty_step(grpc_target: Target, count: int, finish: Finish) -> None:
    """The server SHOULD send a known reason also when the last engine step brought no token."""
    told = script(one_by_one(tokens(count)), Step((Advance(0, (), finish),)))
    _ends_as_told(grpc_target, told, Request("reason"))


@requirement("OE-GEN-011", "OE-GEN-017", "SMG-CMP-002", "SMG-GEN-012", needs=(SCRIPTED,))
@pytest.mark.parametrize("told", [(), (EOS,), TOLD[2:]], ids=["nothing", "eos", "stop-token"])
def test_answer_without_tokens_has_an_end(grpc_target: Target, told: tuple[Token, ...]) -> None:
    """The server MUST send a terminal message for an answer without any token."""
    request = Request("nothing", stops=(StopToken(102),), include_stop=False)
    _ends_as_told(grpc_target, script(one_by_one(told)), request)


@requirement("OE-FIN-009", "SMG-CMP-005", "SMG-CMP-006", needs=(SCRIPTED,))
@pytest.mark.parametrize("stop", [StopText("!"), StopToken(102)], ids=["text", "token"])
@pytest.mark.parametrize("include", [True, False], ids=["included", "excluded"])
def test_stop_on_the_last_allowed_token_wins(grpc_target: Target, include: bool, stop: StopText | StopToken) -> None:
    """The server SHOULD report the stop when it falls on the last token that the limit allows."""
    request = Request("wins", max_tokens=3, stops=(stop,), include_stop=include)
    _ends_as_told(grpc_target, script(one_by_one(TOLD)), request)


@requirement("OE-FIN-009", "SMG-CMP-005", "SMG-CMP-006", "SMG-CMP-007", needs=(SCRIPTED,))
@pytest.mark.parametrize("ending", ["stop-text", "stop-token", "eos"])
def test_stop_inside_a_step_that_crosses_the_limit(grpc_target: Target, ending: str) -> None:
    """The server SHOULD report the stop, and send nothing after it, when its step goes past the limit."""
    told, options = ENDINGS[ending]
    request = Request("crosses", max_tokens=3, **options)
    collected = _ends_as_told(grpc_target, script(in_steps(told, (1, 3))), request)
    ids = collected.sequences[0].token_ids
    asserts.true("no token after the stop is sent", 103 not in ids, ids)


@requirement("OE-FIN-013", "SMG-CMP-004", "SMG-CMP-005", "SMG-CMP-006", needs=(SCRIPTED,))
def test_reason_and_match_are_per_sequence(grpc_target: Target) -> None:
    """The server MUST report reason and match of each sequence by itself."""
    told = script(
        Step(tuple(Advance(index, pieces("a", "b", start=100 * index)) for index in range(1, 4))),
        Step((Advance(0, tokens(1)), Advance(1, pieces("!", start=50)), Advance(2, pieces("c", start=60)))),
        Step((Advance(3, (EOS,)), Advance(0, tokens(1)))),
    )
    request = Request("each", stops=(StopText("!"), StopToken(60)), num_sequences=4, temperature=1.0)
    _ends_as_told(grpc_target, told, request)


@requirement("OE-FIN-015", needs=(SCRIPTED,))
@pytest.mark.parametrize("prompt", ["a ! b", (102, 2, 7)], ids=["text", "ids"])
def test_stop_in_the_prompt_stops_nothing(grpc_target: Target, prompt: str | tuple[int, ...]) -> None:
    """The server SHOULD look for stops in the output only, not in the prompt."""
    request = Request("prompt", prompt, stops=(StopText("!"), StopToken(102)))
    told = pieces("c", "d", start=200)
    collected = _ends_as_told(grpc_target, script(one_by_one(told)), request)
    asserts.token_ids(told, collected.sequences[0].tokens, "sequence 0")


@requirement("OE-FIN-011", "SMG-ABT-004", needs=(SCRIPTED,))
@pytest.mark.parametrize("released", [1, 0], ids=["after-a-token", "before-any-token"])
def test_aborted_sequence_claims_no_normal_end(grpc_target: Target, released: int) -> None:
    """The server SHOULD not report stop or length for a sequence that was aborted."""
    gate = grpc_target.prepare("aborted", script(one_by_one(tokens(3))))
    stream = grpc_target.generate(Request("aborted"))
    asserts.reached(gate.submitted(), "the engine has the request")
    gate.release(released)
    asserts.reached(gate.delivered(released), "what the engine has produced is taken")
    grpc_target.client.abort("aborted")
    collected = asserts.ended(stream, gate)
    ends = [finish for sequence in collected.sequences.values() for finish in sequence.finishes]
    for finish in ends:
        asserts.cancelled(finish, f"sequence {finish.index}")
    told = bool(ends) or bool(collected.errors) or not collected.status.ok
    asserts.true("the end of an aborted request is told", told, "status OK and nothing else")
