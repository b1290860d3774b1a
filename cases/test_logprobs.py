"""Scores: each token has the log probability, rank and candidates of its own position, if asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.script import (
    Advance,
    Candidate,
    Script,
    Step,
    StopText,
    Token,
    in_steps,
    one_by_one,
    pieces,
    scored,
    script,
    side_by_side,
    tokens,
)
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import PromptEvent, Request, TokensEvent, WireProtocol
from pytest_grpc_conformance.protocols.collected import Collected
from pytest_grpc_conformance.targets.base import Target

TOLD = scored(tokens(7))
"""Ranks 1 to 7, each with the five best candidates: the last two tokens are not among their own."""
SPLITS = {"ones": (1,) * 7, "three-and-four": (3, 4), "empty-between": (2, 0, 5)}


def _prompt(*ids: int) -> tuple[Token, ...]:
    """A prompt whose every token but the first has scores that name its position."""
    first, *others = scored(Token(token_id) for token_id in ids)
    return (Token(first.id), *others)


PROMPT = _prompt(11, 12, 13, 14)
PROMPT_IDS = tuple(token.id for token in PROMPT)
ASKED = script(one_by_one(tokens(3)), prompt=PROMPT)


def _whole(target: Target, told: Script, request: Request) -> Collected:
    """The whole answer to a request whose script is released from the start."""
    return asserts.succeeded(target.play(told, request), request)


def _scored_as_told(target: Target, told: Script, request: Request) -> Collected:
    """The whole answer, whose tokens and scores are those of the script, in every message that has them."""
    collected = _whole(target, told, request)
    for index, expected in enumerate(course(told, request.parameters()).outcome):
        received = collected.sequences[index]
        _same(expected.tokens, tuple(received.tokens), target.protocol, f"sequence {index}")
        for finish in received.finishes:
            if finish.output is not None:
                _same(expected.tokens, finish.output, target.protocol, f"the end of sequence {index}")
    return collected


def _same(expected: tuple[Token, ...], observed: tuple[Token, ...], wire: WireProtocol, where: str) -> None:
    asserts.token_ids(expected, observed, where)
    asserts.scores(expected, observed, wire, where)


def _prompts(collected: Collected) -> list[tuple[Token, ...]]:
    """The prompt's tokens from each message that has them: one of their own, or terminal ones."""
    ends = [finish.prompt for sequence in collected.sequences.values() for finish in sequence.finishes]
    return [prompt.tokens for prompt in collected.prompts] + [prompt for prompt in ends if prompt is not None]


def _only_prompt(collected: Collected) -> tuple[Token, ...]:
    """The prompt's tokens. Where several messages have them, they agree."""
    found = _prompts(collected)
    asserts.true("the scores of the prompt come", bool(found), "no message has them")
    for other in found[1:]:
        asserts.equal("the prompt in a further message", found[0], other)
    return found[0]


def _edited(target: Target, told: Script, request: Request, edit: Callable[[Any], object]) -> Collected:
    """The whole answer, whatever it is, to a request whose message is edited before it is sent."""
    target.prepare(request.request_id, told, open=True)
    message = target.protocol.to_message(request, model=target.model)
    edit(message)
    return asserts.ended(target.client.send(message, label=request.request_id))


def _values(collected: Collected) -> list[float]:
    """Every log probability that came: of tokens, of their candidates, and of the prompt."""
    groups = [token for sequence in collected.sequences.values() for token in sequence.tokens]
    groups += [token for prompt in _prompts(collected) for token in prompt]
    own = [token.logprob for token in groups if token.logprob is not None]
    return own + [candidate.logprob for token in groups for candidate in token.candidates]


def _all_finite(collected: Collected) -> None:
    for value in _values(collected):
        asserts.true("a log probability is finite and at most 0", math.isfinite(value) and value <= 0, value)


# Output tokens.


@requirement("OE-LP-001", "OE-LP-003", "SMG-LP-001", "SMG-LP-003", "SMG-CMP-009", needs=(SCRIPTED,))
@pytest.mark.parametrize("sizes", SPLITS.values(), ids=SPLITS)
def test_each_token_has_its_own_score(grpc_target: Target, sizes: tuple[int, ...]) -> None:
    """The server MUST give each output token the log probability of its own position.

    OpenEngine v1, docs/api.md, Generation API.
    """
    _scored_as_told(grpc_target, script(in_steps(TOLD, sizes)), Request("scored", logprobs=5))


@requirement("OE-LP-003", "SMG-LP-001", needs=(SCRIPTED,))
def test_tokens_of_one_step_have_candidates_of_their_own(grpc_target: Target) -> None:
    """The server MUST give each token of a step the candidates of its own position."""
    _scored_as_told(grpc_target, script(in_steps(TOLD, (3, 4))), Request("own", logprobs=2))


@requirement("OE-LP-004", "SMG-CMP-009", needs=(SCRIPTED,))
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 2, 1), (1, 1, 3)], ids=["ones", "twos", "three-at-last"])
def test_held_tokens_keep_their_scores(grpc_target: Target, sizes: tuple[int, ...]) -> None:
    """The server MUST keep scores with their tokens when tokens are held back and released later."""
    told = script(in_steps(scored(pieces("x", "A", "B", "C", "y")), sizes))
    _scored_as_told(grpc_target, told, Request("held", logprobs=2, stops=(StopText("ABD"),), include_stop=False))


@requirement("OE-LP-001", "SMG-LP-001", needs=(SCRIPTED,))
@pytest.mark.parametrize("empty", [1, 3], ids=lambda empty: f"empty={empty}")
def test_first_token_after_empty_steps_has_its_score(grpc_target: Target, empty: int) -> None:
    """The server MUST score the first token too when empty engine steps came before it."""
    told = script(in_steps(TOLD[:2], (*(0,) * empty, 1, 1)))
    _scored_as_told(grpc_target, told, Request("first", logprobs=1))


@requirement("OE-LP-003", "SMG-LP-003", needs=(SCRIPTED,))
def test_scores_stay_with_their_sequence(grpc_target: Target) -> None:
    """The server MUST give each sequence the scores of its own tokens."""
    told = scored(tokens(6))
    interleaved = (Step((Advance(0, told[:2]), Advance(1, told[2:3]))), Step((Advance(1, told[3:]),)))
    request = Request("each", logprobs=2, num_sequences=2, temperature=1.0)
    _scored_as_told(grpc_target, script(interleaved), request)


@requirement("OE-LP-009", "OE-LP-011", "SMG-LP-001", "SMG-LP-005", needs=(SCRIPTED,))
@pytest.mark.parametrize("wanted", [1, 2, 5], ids=lambda wanted: f"k={wanted}")
def test_candidates_are_the_best_ones(grpc_target: Target, wanted: int) -> None:
    """The server MUST give as many candidates as asked for, the most probable ones."""
    collected = _whole(grpc_target, script(one_by_one(TOLD)), Request("best", logprobs=wanted))
    for expected, token in zip(TOLD, collected.sequences[0].tokens, strict=False):
        best = {candidate.token_id for candidate in expected.candidates[:wanted]}
        asserts.equal("the number of candidates", wanted, len(token.candidates))
        asserts.equal("the candidates", best, {candidate.token_id for candidate in token.candidates})


@requirement("OE-LP-012", "SMG-LP-005", needs=(SCRIPTED,))
def test_best_candidate_comes_first(grpc_target: Target) -> None:
    """The server SHOULD list candidates from the most to the least probable."""
    collected = _whole(grpc_target, script(one_by_one(TOLD)), Request("order", logprobs=5))
    for at, token in enumerate(collected.sequences[0].tokens):
        values = [candidate.logprob for candidate in token.candidates]
        asserts.equal(f"the order of the candidates of token {at}", sorted(values, reverse=True), values)


@requirement("OE-LP-010", "SMG-LP-005", needs=(SCRIPTED,))
def test_token_outside_the_best_is_not_added_to_them(grpc_target: Target) -> None:
    """The server SHOULD not add the chosen token to candidates that it does not belong to."""
    collected = _whole(grpc_target, script(one_by_one(TOLD[4:])), Request("outside", logprobs=2))
    for token in collected.sequences[0].tokens:
        candidates = [candidate.token_id for candidate in token.candidates]
        asserts.true(f"token {token.id} is not a candidate", token.id not in candidates, candidates)


@requirement("OE-LP-001", "SMG-LP-004", needs=(SCRIPTED,))
def test_token_outside_the_best_has_a_real_score(grpc_target: Target) -> None:
    """The server SHOULD send the real log probability of a token that is not among the best."""
    collected = _whole(grpc_target, script(one_by_one(TOLD[4:])), Request("rare", logprobs=2))
    received = [token.logprob for token in collected.sequences[0].tokens]
    asserts.equal("the log probabilities", [token.logprob for token in TOLD[4:]], received)


@requirement("OE-LP-015", "SMG-LP-002", needs=(SCRIPTED,))
def test_zero_candidates_leave_the_score(grpc_target: Target) -> None:
    """The server SHOULD send scores without candidates when zero candidates are asked for."""
    _scored_as_told(grpc_target, script(one_by_one(TOLD)), Request("zero", logprobs=0))


@requirement("OE-LP-015", needs=(SCRIPTED,))
def test_no_candidate_selection_leaves_the_score(grpc_target: Target) -> None:
    """The server SHOULD send scores without candidates when the request selects no candidates."""
    told, request = script(one_by_one(TOLD)), Request("bare", logprobs=0)
    collected = _edited(grpc_target, told, request, lambda message: message.response.ClearField("output_candidates"))
    asserts.ordered(collected, request, grpc_target.protocol)
    expected = course(told, request.parameters()).outcome[0].tokens
    _same(expected, tuple(collected.sequences[0].tokens), grpc_target.protocol, "sequence 0")


@requirement("OE-LP-002", "SMG-LP-001", needs=(SCRIPTED,))
def test_no_scores_without_being_asked(grpc_target: Target) -> None:
    """The server SHOULD send no score, rank or candidate of output tokens that nobody asked for."""
    _scored_as_told(grpc_target, script(one_by_one(TOLD)), Request("plain"))


@requirement("OE-LP-016", needs=(SCRIPTED,))
def test_candidate_selection_alone_has_no_effect(grpc_target: Target) -> None:
    """The server SHOULD ignore a candidate selection whose scores are not asked for."""

    def edit(message: Any) -> None:
        message.response.ClearField("return_output_logprobs")
        message.response.ClearField("return_prompt_logprobs")

    request = Request("alone", PROMPT_IDS, logprobs=3, prompt_logprobs=3)
    collected = _edited(grpc_target, script(one_by_one(TOLD), prompt=PROMPT), request, edit)
    asserts.ordered(collected, request, grpc_target.protocol)
    asserts.equal("the log probabilities that came", [], _values(collected))


@requirement("OE-LP-018", needs=(SCRIPTED,))
def test_unknown_rank_is_absent(grpc_target: Target) -> None:
    """The server SHOULD count ranks from 1 and leave out a rank that is not known."""
    told = script(one_by_one((Token(100, b"a", -0.5), *scored(pieces("b", "c", start=101)))))
    _scored_as_told(grpc_target, told, Request("rank", logprobs=1))


@requirement("OE-LP-019", "SMG-LP-010", needs=(SCRIPTED,))
@pytest.mark.parametrize("where", ["own", "candidate", "prompt"])
def test_minus_infinity_is_sent_as_a_finite_number(grpc_target: Target, where: str) -> None:
    """The server SHOULD send only finite log probabilities, none above zero, also for a masked token."""
    never = Token(101, b"b", -math.inf if where == "own" else -0.25, 1, (Candidate(9, -math.inf, 2),))
    told = script(one_by_one((TOLD[0], never, TOLD[2])), prompt=(Token(1), Token(2, logprob=-math.inf)))
    asked = 1 if where == "prompt" else None
    collected = _whole(grpc_target, told, Request("masked", (1, 2), logprobs=2, prompt_logprobs=asked))
    asserts.token_ids((TOLD[0], never, TOLD[2]), collected.sequences[0].tokens, "sequence 0")
    _all_finite(collected)


@requirement("OE-LP-023", needs=(SCRIPTED,))
@pytest.mark.parametrize("wanted", [0, 3], ids=lambda wanted: f"k={wanted}")
def test_scores_change_no_text(grpc_target: Target, wanted: int) -> None:
    """The server SHOULD send the same tokens and text whether scores are asked for or not."""
    request = Request("same", logprobs=wanted, prompt_logprobs=wanted)
    collected = _whole(grpc_target, script(one_by_one(TOLD)), request)
    asserts.token_ids(TOLD, collected.sequences[0].tokens, "sequence 0")
    asserts.text(b"".join(token.piece for token in TOLD).decode(), collected.sequences[0].text, "sequence 0")


@requirement("OE-LP-024", "SMG-CMP-009", needs=(SCRIPTED,))
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 2), (3,)], ids=["ones", "stop-in-one-step", "one-step"])
def test_excluded_stop_leaves_no_scores_behind(grpc_target: Target, sizes: tuple[int, ...]) -> None:
    """The server SHOULD leave out the scores of an excluded stop together with its tokens."""
    told = script(in_steps(scored(pieces("x", "A", "B")), sizes))
    request = Request("trimmed", logprobs=1, stops=(StopText("AB"),), include_stop=False)
    _scored_as_told(grpc_target, told, request)


@requirement("SMG-CHK-009", "SMG-LP-003", needs=(SCRIPTED,))
@pytest.mark.parametrize("wanted", [None, 0, 2], ids=lambda wanted: f"k={wanted}")
def test_each_entry_names_its_token(grpc_target: Target, wanted: int | None) -> None:
    """The server MUST send one score entry per token of a message, naming that token, or none at all."""
    collected = _whole(grpc_target, script(in_steps(TOLD, (1, 2, 4))), Request("entries", logprobs=wanted))
    for item in collected.received:
        message = item.message.chunk if isinstance(item.event, TokensEvent) else item.message.complete
        ids = message.token_ids if isinstance(item.event, TokensEvent) else message.output_token_ids
        entries = [entry.token_id for entry in message.logprobs]
        asserts.equal("the token ids of the entries", [] if wanted is None else list(ids), entries)


@requirement("SMG-LP-009", needs=(SCRIPTED,))
def test_chunks_and_complete_have_the_same_scores(grpc_target: Target) -> None:
    """The server SHOULD send the same scores in chunks and in the final message."""
    collected = _whole(grpc_target, script(in_steps(TOLD, (1, 2, 4))), Request("joined", logprobs=3))
    received = collected.sequences[0]
    asserts.equal("the tokens with scores", tuple(received.tokens), received.finishes[0].output)


# The prompt.


@requirement("OE-LP-008", "SMG-LP-006", needs=(SCRIPTED,))
@pytest.mark.parametrize("ids", [(7,), (7, 0), PROMPT_IDS], ids=["one", "id-zero", "four"])
def test_prompt_is_listed_whole(grpc_target: Target, ids: tuple[int, ...]) -> None:
    """The server SHOULD list every prompt token once and in order when prompt scores are asked for."""
    told = script(one_by_one(tokens(2)), prompt=_prompt(*ids))
    collected = _whole(grpc_target, told, Request("listed", ids, prompt_logprobs=2))
    asserts.equal("the prompt's token ids", list(ids), [token.id for token in _only_prompt(collected)])


@requirement("OE-LP-005", needs=(SCRIPTED,))
@pytest.mark.parametrize("ids", [(7,), PROMPT_IDS], ids=["one", "four"])
def test_first_prompt_token_has_no_score(grpc_target: Target, ids: tuple[int, ...]) -> None:
    """The server MUST send the first prompt token without log probability, rank and candidates."""
    told = script(one_by_one(tokens(2)), prompt=_prompt(*ids))
    collected = _whole(grpc_target, told, Request("unscored", ids, prompt_logprobs=2))
    asserts.equal("the first prompt token", Token(ids[0]), _only_prompt(collected)[0])


@requirement("OE-LP-006", "OE-LP-007", "SMG-LP-007", needs=(SCRIPTED,))
@pytest.mark.parametrize("wanted", [0, 1, 5], ids=lambda wanted: f"k={wanted}")
def test_prompt_tokens_have_their_own_scores(grpc_target: Target, wanted: int) -> None:
    """The server MUST give each prompt token the log probability and candidates of its own position."""
    collected = _whole(grpc_target, ASKED, Request("shift", PROMPT_IDS, prompt_logprobs=wanted))
    expected = [Token(t.id, b"", t.logprob, t.rank, t.candidates[:wanted]) for t in PROMPT]
    _same(tuple(expected), _only_prompt(collected), grpc_target.protocol, "the prompt")


@requirement("OE-GEN-004", "OE-LP-022", needs=(SCRIPTED,))
@pytest.mark.parametrize("count", [1, 3], ids=lambda count: f"n={count}")
def test_prompt_comes_once(grpc_target: Target, count: int) -> None:
    """The server MUST send the prompt's scores once per request, also with several sequences."""
    request = Request("once", PROMPT_IDS, prompt_logprobs=1, num_sequences=count, temperature=1.0)
    told = script(side_by_side(*(tokens(4, start=100 * at) for at in range(1, count + 1))), prompt=PROMPT)
    collected = _whole(grpc_target, told, request)
    asserts.equal("the number of prompt messages", 1, len(collected.prompts))


@requirement("SMG-LP-006", "SMG-LP-008", needs=(SCRIPTED,))
def test_prompt_of_several_sequences_is_listed_whole(grpc_target: Target) -> None:
    """The server MUST send one score entry per prompt token in final messages only."""
    request = Request("several", PROMPT_IDS, prompt_logprobs=1, num_sequences=3, temperature=1.0)
    told = script(side_by_side(tokens(3), tokens(1), tokens(2)), prompt=PROMPT)
    collected = _whole(grpc_target, told, request)
    asserts.equal("the prompt's token ids", list(PROMPT_IDS), [token.id for token in _only_prompt(collected)])


@requirement("OE-GEN-006", needs=(SCRIPTED,))
def test_prompt_comes_before_the_first_token(grpc_target: Target) -> None:
    """The server SHOULD send the prompt's scores before the first token."""
    collected = _whole(grpc_target, ASKED, Request("before", PROMPT_IDS, prompt_logprobs=1))
    first = collected.received[0].event
    asserts.true("the first message is the prompt", isinstance(first, PromptEvent), type(first).__name__)


@requirement("OE-LP-017", "SMG-CMP-010", "SMG-LP-001", needs=(SCRIPTED,))
@pytest.mark.parametrize(
    ("prompt", "output"),
    [(3, None), (None, 1), (3, 1), (0, 5)],
    ids=["prompt-only", "output-only", "3-and-1", "0-and-5"],
)
def test_prompt_and_output_scores_are_independent(grpc_target: Target, prompt: int | None, output: int | None) -> None:
    """The server MUST keep the settings of prompt scores and output scores apart."""
    request = Request("apart", PROMPT_IDS, logprobs=output, prompt_logprobs=prompt)
    collected = _scored_as_told(grpc_target, script(one_by_one(TOLD), prompt=PROMPT), request)
    if prompt is None:
        asserts.equal("the messages with prompt scores", [], _prompts(collected))
    else:
        counts = [len(token.candidates) for token in _only_prompt(collected)[1:]]
        asserts.equal("the candidates per prompt token", [prompt] * 3, counts)


@requirement("OE-GEN-005", "SMG-CMP-010", needs=(SCRIPTED,))
def test_no_prompt_without_being_asked(grpc_target: Target) -> None:
    """The server SHOULD send nothing about the prompt's tokens when nobody asked for it."""
    collected = _whole(grpc_target, ASKED, Request("quiet", PROMPT_IDS, logprobs=1))
    asserts.equal("the messages with prompt scores", [], _prompts(collected))


@requirement("OE-LP-021", needs=(SCRIPTED,))
def test_scores_from_position_zero_are_all_scores(grpc_target: Target) -> None:
    """The server SHOULD take an explicit first scored position of 0 like an absent one."""
    request = Request("from-0", PROMPT_IDS, prompt_logprobs=1)
    collected = _edited(grpc_target, ASKED, request, lambda m: setattr(m.response, "prompt_logprob_start", 0))
    asserts.ordered(collected, request, grpc_target.protocol)
    received = [token.logprob for token in _only_prompt(collected)]
    asserts.equal("the prompt's log probabilities", [token.logprob for token in PROMPT], received)


@requirement("OE-LP-020", needs=(SCRIPTED,))
def test_first_scored_position_is_honoured_or_refused(grpc_target: Target) -> None:
    """The server SHOULD score the prompt from the position that was asked for, or refuse the request."""
    request = Request("from-2", PROMPT_IDS, prompt_logprobs=1)
    collected = _edited(grpc_target, ASKED, request, lambda m: setattr(m.response, "prompt_logprob_start", 2))
    if collected.status.ok:
        scored_ids = [token.id for token in _only_prompt(collected) if token.logprob is not None]
        asserts.equal("the prompt tokens with scores", list(PROMPT_IDS[2:]), scored_ids)
    else:
        asserts.refused(collected)


# Any server.


@requirement("OE-LP-001", "OE-LP-018", "OE-LP-019", "SMG-LP-001", "SMG-LP-010")
def test_scores_come_or_are_refused(grpc_target: Target) -> None:
    """The server MUST score each output token when it accepts a request for scores.

    A server that cannot score refuses the request, which is none of its failures.
    """
    request = Request("honoured", max_tokens=4, logprobs=2, temperature=0.0)
    if SCRIPTED in grpc_target.capabilities:
        grpc_target.prepare("honoured", script(one_by_one(TOLD[:4])), open=True)
    collected = asserts.ended(grpc_target.generate(request))
    if not collected.received and collected.status.code == "UNIMPLEMENTED":
        return
    asserts.ordered(collected, request, grpc_target.protocol)
    for token in collected.sequences[0].tokens:
        asserts.true(f"token {token.id} has a score", token.logprob is not None, token)
        asserts.true("its rank is absent or at least 1", token.rank is None or token.rank >= 1, token.rank)
    _all_finite(collected)
