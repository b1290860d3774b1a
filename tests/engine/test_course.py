"""The rules of stopping, row by row. ``test_course_model.py`` compares them with a second statement of them."""

from __future__ import annotations

import pytest

from pytest_grpc_conformance.engines.base import SequenceState
from pytest_grpc_conformance.engines.course import (
    Course,
    cancelled_course,
    course,
    prompt_as_asked,
)
from pytest_grpc_conformance.engines.deltas import apply
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import (
    Advance,
    Candidate,
    Ending,
    EndOfSequence,
    Finish,
    FinishReason,
    Step,
    StopText,
    StopToken,
    Token,
    in_steps,
    one_by_one,
    pieces,
    scored,
    script,
    side_by_side,
    tokens,
)

LENGTH = Finish(FinishReason.LENGTH)
CANCELLED = Finish(FinishReason.CANCELLED)
EOS = Token(2, b"</s>")
EURO = "€".encode()
EMOJI = "🦀".encode()


def stop_text(text: str) -> Finish:
    return Finish(FinishReason.STOP, StopText(text))


def stop_token(token_id: int) -> Finish:
    return Finish(FinishReason.STOP, StopToken(token_id))


def end_of_sequence(token_id: int) -> Finish:
    return Finish(FinishReason.STOP, EndOfSequence(token_id))


def play(*parts: str | bytes | Token, eos: frozenset[int] = frozenset({2}), **asked: object) -> Course:
    """The course of one sequence, one token a step; text parts get the ids 100, 101 and so on."""
    sequence = [
        part if isinstance(part, Token) else pieces(part, start=100 + number)[0] for number, part in enumerate(parts)
    ]
    return course(script(one_by_one(sequence)), GenerationParameters(**asked), eos)  # type: ignore[arg-type]


def shown(played: Course) -> list[SequenceState]:
    """The first sequence after each result, as a servicer sees it."""
    state, states = SequenceState(0), []
    for result in played.results:
        for delta in result.deltas:
            if delta.index == 0:
                apply(delta, state)
        states.append(SequenceState(0, [*state.tokens], state.text, [*state.text_ends], state.finish))
    return states


def ids(*numbers: int) -> tuple[int, ...]:
    return numbers


STOPS = {
    "within-one-token": (("xABy",), ("AB",), "x", 1, "AB"),
    "over-a-token-border": (("xA", "By"), ("AB",), "x", 1, "AB"),
    "over-three-tokens": (("x", "A", "B", "C"), ("ABC",), "x", 1, "ABC"),
    "at-a-token-border": (("x", "AB"), ("AB",), "x", 1, "AB"),
    "at-the-start": (("AB",), ("AB",), "", 0, "AB"),
    "overlapping-restart": (("A", "A", "B"), ("AB",), "A", 1, "AB"),
    "restart-within-the-stop": (("A", "B", "A", "B", "A", "C"), ("ABAC",), "AB", 2, "ABAC"),
    "first-complete-wins": (("A", "BC"), ("ABC", "AB"), "", 0, "AB"),
    "first-complete-wins-though-it-begins-later": (("xA", "BC"), ("xABC", "B"), "xA", 1, "B"),
    "on-a-tie-the-first-given": (("A", "B"), ("B", "AB"), "A", 1, "B"),
    "on-a-tie-the-first-given-longer": (("A", "B"), ("AB", "B"), "", 0, "AB"),
    "first-of-two-in-one-token": (("xAyB",), ("B", "A"), "x", 1, "A"),
    "split-character": (("x", EURO[:1], EURO[1:]), ("€",), "x", 1, "€"),
    "after-a-split-character": (("x", EURO[:2], EURO[2:] + b"A"), ("A",), "x€", 3, "A"),
    "empty-stop-is-passed-by": (("x", "A"), ("", "A"), "x", 1, "A"),
    "tokens-without-text-before-the-stop-go": (("x", "", "A"), ("A",), "x", 1, "A"),
}


@pytest.mark.parametrize(("parts", "stops", "text", "kept", "matched"), STOPS.values(), ids=STOPS.keys())
def test_an_excluded_stop_text_is_cut_with_the_tokens_that_begin_in_it(parts, stops, text, kept, matched):
    played = play(*parts, "never", stop_texts=stops)
    outcome = played.outcome[0]
    assert (outcome.text, len(outcome.tokens), outcome.finish) == (text, kept, stop_text(matched))
    assert played.results[-1].finished
    assert played.ending is None
    last = shown(played)[-1]
    assert (last.text, tuple(last.tokens), last.finish) == (outcome.text, outcome.tokens, outcome.finish)
    assert all(end <= len(text) for end in last.text_ends)


@pytest.mark.parametrize(("parts", "stops", "text", "kept", "matched"), STOPS.values(), ids=STOPS.keys())
def test_an_included_stop_text_ends_the_text_and_keeps_every_token(parts, stops, text, kept, matched):
    outcome = play(*parts, "never", stop_texts=stops, include_stop=True).outcome[0]
    assert (outcome.text, outcome.finish) == (text + matched, stop_text(matched))
    assert len(outcome.tokens) == len(parts)


@pytest.mark.parametrize(
    ("parts", "stop"),
    [(("A", "B", "A", "C"), "ABAD"), (("x", "A"), "AB"), (("a", "b"), "B"), (("A",), "")],
    ids=["failed-restart", "unfinished", "case", "empty"],
)
def test_what_only_begins_like_a_stop_text_stays(parts, stop):
    outcome = play(*parts, stop_texts=(stop,)).outcome[0]
    assert (outcome.text, outcome.finish) == ("".join(parts), LENGTH)


def test_a_stop_that_was_partly_shown_is_taken_back_in_the_last_result():
    states = shown(play("xA", "B", stop_texts=("AB",)))
    assert [(state.text, len(state.tokens), state.text_ends) for state in states] == [
        ("xA", 1, [2]),
        ("x", 1, [1]),
    ]


def test_tokens_that_were_shown_are_taken_back_with_an_excluded_stop():
    states = shown(play("x", "A", "B", "C", stop_texts=("ABC",)))
    assert [len(state.tokens) for state in states] == [1, 2, 3, 1]
    assert [state.text for state in states] == ["x", "xA", "xAB", "x"]


END_TOKENS = {
    "stop-token-excluded": (dict(stop_token_ids=(101,)), ids(100), stop_token(101)),
    "stop-token-included": (dict(stop_token_ids=(101,), include_stop=True), ids(100, 101), stop_token(101)),
    "stop-token-zero": (dict(stop_token_ids=(0, 102)), ids(100, 101), stop_token(102)),
    "end-of-sequence": (dict(), ids(100, 101, 102), end_of_sequence(2)),
    "end-of-sequence-is-never-included": (dict(include_stop=True), ids(100, 101, 102), end_of_sequence(2)),
    "end-of-sequence-ignored": (dict(ignore_eos=True), ids(100, 101, 102, 2, 104), LENGTH),
    "ignored-but-given-as-a-stop": (
        dict(ignore_eos=True, stop_token_ids=(2,)),
        ids(100, 101, 102),
        stop_token(2),
    ),
    "stop-token-before-end-of-sequence": (dict(stop_token_ids=(2,)), ids(100, 101, 102), stop_token(2)),
    "max-tokens": (dict(max_tokens=2), ids(100, 101), LENGTH),
    "max-tokens-at-the-end-of-sequence": (dict(max_tokens=3), ids(100, 101, 102), LENGTH),
    "max-tokens-beyond": (dict(max_tokens=9), ids(100, 101, 102), end_of_sequence(2)),
    "stop-on-the-last-allowed-token": (
        dict(max_tokens=2, stop_texts=("b",), include_stop=True),
        ids(100, 101),
        stop_text("b"),
    ),
    "stop-token-where-the-cap-would-be": (
        dict(max_tokens=2, stop_token_ids=(101,)),
        ids(100),
        stop_token(101),
    ),
    "min-tokens-delays-a-stop-token": (
        dict(min_tokens=2, stop_token_ids=(101,)),
        ids(100, 101, 102),
        end_of_sequence(2),
    ),
    "min-tokens-delays-a-stop-text": (
        dict(min_tokens=2, stop_texts=("b",)),
        ids(100, 101, 102),
        end_of_sequence(2),
    ),
    "min-tokens-delays-the-end": (dict(min_tokens=4), ids(100, 101, 102, 2, 104), LENGTH),
    "min-tokens-reached-a-stop-acts": (
        dict(min_tokens=1, stop_token_ids=(101,)),
        ids(100),
        stop_token(101),
    ),
    "min-tokens-zero": (dict(min_tokens=0, stop_texts=("a",)), ids(), stop_text("a")),
    "a-stop-that-began-before-min-tokens": (dict(min_tokens=1, stop_texts=("ab",)), ids(), stop_text("ab")),
    "max-tokens-below-min-tokens": (dict(min_tokens=3, max_tokens=2), ids(100, 101), LENGTH),
}


@pytest.mark.parametrize(("asked", "kept", "finish"), END_TOKENS.values(), ids=END_TOKENS.keys())
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (5,), (2, 0, 3)], ids=["singly", "one-step", "mixed"])
def test_what_ends_a_sequence(asked, kept, finish, sizes):
    sequence = (*pieces("a", "b", "c"), EOS, *pieces("d", start=104))
    played = course(script(in_steps(sequence, sizes)), GenerationParameters(**asked), frozenset({2, 3}))
    assert (played.outcome[0].token_ids, played.outcome[0].finish) == (kept, finish)
    assert played.completion_tokens == len(kept)
    assert shown(played)[-1].tokens == list(played.outcome[0].tokens)


def test_each_of_several_end_of_sequence_ids_ends_the_sequence():
    assert play("a", Token(3), eos=frozenset({2, 3})).outcome[0].finish == end_of_sequence(3)
    assert play("a", Token(0), eos=frozenset({0})).outcome[0].finish == end_of_sequence(0)


def test_a_stop_inside_a_step_drops_the_rest_of_the_step():
    sequence = pieces("x", " h", "a", "y", "z")
    played = course(script(in_steps(sequence, [5])), GenerationParameters(stop_texts=(" ha",)))
    assert played.outcome[0].token_ids == (100,)
    assert len(played.results) == 1


def test_steps_after_the_last_finish_are_not_played():
    assert len(play("a", "b", "c", "d", max_tokens=2).results) == 2


@pytest.mark.parametrize(
    ("parts", "states"),
    [
        ((EMOJI[:1], EMOJI[1:3], EMOJI[3:]), [("", [0]), ("", [0, 0]), ("🦀", [0, 0, 1])]),
        (("é".encode()[:1], "é".encode()[1:] + b"x"), [("", [0]), ("éx", [0, 2])]),
        ((b"a" + EMOJI[:3], "b"), [("a", [1]), ("a\ufffdb", [1, 3])]),
        ((b"\xff", "b"), [("\ufffd", [1]), ("\ufffdb", [1, 2])]),
    ],
    ids=["one-by-one", "two-and-more", "broken-off", "invalid"],
)  # fmt: skip
def test_a_character_shows_once_its_last_byte_is_there(parts, states):
    assert [(state.text, state.text_ends) for state in shown(play(*parts))] == states


INCOMPLETE = {
    "by-max-tokens": (("a", EMOJI[:2], "never"), dict(max_tokens=2), LENGTH, [1, 2]),
    "by-the-end-of-the-script": (("a", EMOJI[:2]), dict(), LENGTH, [1, 2]),
    "by-end-of-sequence": (("a", EMOJI[:2], EOS), dict(), end_of_sequence(2), [1, 2]),
    "by-an-excluded-stop-token": (("a", EMOJI[:2], Token(7)), dict(stop_token_ids=(7,)), stop_token(7), [1, 2]),
    "by-an-included-stop-token": (
        ("a", EMOJI[:2], Token(7)),
        dict(stop_token_ids=(7,), include_stop=True),
        stop_token(7),
        [1, 1, 2],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("parts", "asked", "finish", "ends"), INCOMPLETE.values(), ids=INCOMPLETE.keys())
def test_a_character_left_incomplete_shows_as_one_replacement_character(parts, asked, finish, ends):
    played = play(*parts, **asked)
    last = shown(played)[-1]
    assert (last.text, last.finish, last.text_ends) == ("a\ufffd", finish, ends)
    assert played.outcome[0].text == last.text
    assert played.outcome[0].tokens == tuple(last.tokens)


def test_bytes_after_an_excluded_stop_text_leave_no_trace():
    outcome = play(b"xA" + EMOJI[:2], stop_texts=("A",)).outcome[0]
    assert (outcome.text, outcome.finish) == ("x", stop_text("A"))


def test_an_incomplete_character_of_an_earlier_step_is_shown_with_the_finish_alone():
    steps = (Step((Advance(0, pieces(b"a" + EMOJI[:2])),)), Step((Advance(0, (), LENGTH),)))
    states = shown(course(script(steps), GenerationParameters()))
    assert [(state.text, state.text_ends, len(state.tokens)) for state in states] == [
        ("a", [1], 1),
        ("a\ufffd", [2], 1),
    ]


def test_each_sequence_has_its_own_end():
    played = course(
        script(side_by_side(pieces("a", "A", "B"), pieces("b"), pieces("A", "c", "d", "e"))),
        GenerationParameters(num_sequences=3, stop_texts=("AB",)),
    )
    assert [(sequence.text, sequence.finish) for sequence in played.outcome] == [
        ("a", stop_text("AB")),
        ("b", LENGTH),
        ("Acde", LENGTH),
    ]
    assert [result.finished for result in played.results] == [False, False, False, True]
    assert [delta.index for result in played.results for delta in result.deltas] == [0, 1, 2, 0, 2, 0, 2, 2]


def test_a_sequence_that_the_script_never_advances_is_closed_with_the_last_step():
    played = course(script(one_by_one(pieces("a"))), GenerationParameters(num_sequences=3))
    assert [sequence.finish for sequence in played.outcome] == [LENGTH] * 3
    assert [delta.index for delta in played.results[0].deltas] == [0, 1, 2]


def test_deltas_of_a_step_come_in_the_order_of_their_sequences():
    step = Step((Advance(1, pieces("b")), Advance(0, pieces("a"))))
    played = course(script(step, Step()), GenerationParameters())
    assert [delta.index for delta in played.results[0].deltas] == [0, 1]


def test_a_script_without_steps_finishes_in_one_result():
    played = course(script(), GenerationParameters())
    assert [result.finished for result in played.results] == [True]
    assert played.outcome[0].finish == LENGTH


def test_an_empty_step_is_a_result_without_deltas():
    played = course(script(Step(), one_by_one(pieces("a"))), GenerationParameters())
    assert [len(result.deltas) for result in played.results] == [0, 1]


@pytest.mark.parametrize("ending", [Ending.NOTHING, Ending.FAILURE])
def test_an_ending_without_a_finish_leaves_open_sequences_open(ending):
    played = course(script(one_by_one(pieces("a")), ending=ending), GenerationParameters())
    assert played.ending is ending
    assert played.outcome[0].finish is None
    assert not any(result.finished for result in played.results)
    stopped = course(script(one_by_one(pieces("a")), ending=ending), GenerationParameters(max_tokens=1))
    assert stopped.ending is None


def test_a_scripted_finish_is_passed_on_unless_the_rules_end_the_sequence_first():
    finish = stop_text("given")
    steps = script(Step((Advance(0, pieces("a", "b"), finish),)))
    assert course(steps, GenerationParameters()).outcome[0].finish == finish
    assert course(steps, GenerationParameters(max_tokens=1)).outcome[0].finish == LENGTH


@pytest.mark.parametrize(
    ("steps", "text", "finish"),
    [(0, "", CANCELLED), (1, "a", CANCELLED), (2, "ab", CANCELLED), (3, "ab\ufffd", CANCELLED), (4, "ab🦀", LENGTH)],
)  # fmt: skip
def test_an_abort_ends_open_sequences_as_cancelled(steps, text, finish):
    whole = script(one_by_one(pieces("a", "b", EMOJI[:2], EMOJI[2:])))
    cut = cancelled_course(whole, GenerationParameters(), steps=steps)
    assert (cut.outcome[0].text, cut.outcome[0].finish) == (text, finish)
    assert len(cut.results) == min(steps + 1, 4)
    assert shown(cut)[-1].text == text


def test_an_abort_leaves_finished_sequences_alone():
    whole = script(side_by_side(pieces("a"), pieces("b", "c", "d")), ending=Ending.NOTHING)
    cut = cancelled_course(whole, GenerationParameters(num_sequences=3), steps=2)
    assert [sequence.finish for sequence in cut.outcome] == [LENGTH, CANCELLED, CANCELLED]
    assert [delta.index for delta in cut.results[-1].deltas] == [1, 2]


def test_an_abort_after_the_end_changes_nothing():
    for whole in (script(), script(one_by_one(pieces("a")))):
        assert cancelled_course(whole, GenerationParameters(), steps=1) == course(whole, GenerationParameters())
    lost = script(ending=Ending.FAILURE)
    assert cancelled_course(lost, GenerationParameters(), steps=0).outcome[0].finish == CANCELLED


@pytest.mark.parametrize(
    ("logprobs", "logprob", "rank", "candidates"),
    [(None, None, None, 0), (0, -0.125, 1, 0), (2, -0.125, 1, 2), (9, -0.125, 1, 5)],
)
def test_a_token_carries_the_scores_that_were_asked_for(logprobs, logprob, rank, candidates):
    first = course(script(one_by_one(scored(tokens(2)))), GenerationParameters(logprobs=logprobs)).outcome[0]
    token = first.tokens[0]
    assert (token.logprob, token.rank, len(token.candidates)) == (logprob, rank, candidates)


def test_the_best_candidates_are_kept_and_come_first():
    token = Token(1, b"a", -1.0, 1, (Candidate(7, -3.0, 3), Candidate(8, -2.0, 2), Candidate(1, -1.0, 1)))
    kept = course(script(one_by_one([token])), GenerationParameters(logprobs=2)).outcome[0].tokens[0]
    assert [candidate.rank for candidate in kept.candidates] == [1, 2]


def test_candidates_without_an_own_score_are_dropped_when_none_were_asked_for():
    token = Token(1, b"a", None, None, (Candidate(7, -3.0, 1),))
    assert course(script(one_by_one([token])), GenerationParameters()).outcome[0].tokens == (Token(1, b"a"),)


def test_a_prompt_has_scores_only_when_they_were_asked_for():
    prompt = (Token(5), *scored(tokens(2)))
    assert prompt_as_asked(prompt, None) == ()
    assert [token.logprob for token in prompt_as_asked(prompt, 0)] == [None, -0.125, -0.25]
    assert [len(token.candidates) for token in prompt_as_asked(prompt, 3)] == [0, 3, 3]
