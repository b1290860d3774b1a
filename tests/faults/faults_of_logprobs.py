"""Faults in the scores of output tokens: shifted, copied, missing, made up, or sent where nobody asked for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from pytest_grpc_conformance.engines.script import Script, Step, Token
from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import (
    Alteration,
    asked,
    body,
    candidates_of,
    each,
    engine_asked,
    engine_told,
    has_tokens,
    is_end,
    scored_tokens,
    streamed,
    with_scores_of,
)
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault

# Scores of output tokens.


def _retold(script: Script, change: Callable[[list[Token]], Iterable[Token]]) -> Script:
    """The script with other tokens: each step's tokens of a sequence go through ``change`` together."""
    steps = tuple(
        Step(tuple(replace(advance, tokens=tuple(change(list(advance.tokens)))) for advance in step.advances))
        for step in script.steps
    )
    return script.but(steps=steps)


def _shifted(script: Script) -> Script:
    advances = [advance for step in script.steps for advance in step.advances]
    told = [token for advance in advances for token in advance.tokens]
    scores = iter(told[1:] + told[:1])
    return _retold(script, lambda tokens: [with_scores_of(token, next(scores)) for token in tokens])


def _unscored_first(script: Script) -> Script:
    seen: list[Token] = []

    def change(tokens: list[Token]) -> Iterable[Token]:
        for token in tokens:
            yield token if seen else replace(token, logprob=None, rank=None, candidates=())
            seen.append(token)

    return _retold(script, change)


def _worst_first(script: Script) -> Script:
    def change(token: Token) -> Token:
        last = len(token.candidates) + 1
        return replace(token, candidates=tuple(replace(c, rank=last - c.rank) for c in token.candidates))

    return _retold(script, lambda tokens: map(change, tokens))


def _first_of_step(script: Script) -> Script:
    return _retold(script, lambda tokens: [replace(t, candidates=tokens[0].candidates) for t in tokens])


scores_are_shifted_by_one = Mutant(engine=engine_told(_shifted))
first_token_is_not_scored = Mutant(engine=engine_told(_unscored_first))
first_candidates_of_a_step_serve_all = Mutant(engine=engine_told(_first_of_step))
worst_candidates_are_offered = Mutant(engine=engine_told(_worst_first))
stop_keeps_its_scores = Mutant(engine=engine_asked(lambda p, script: replace(p, include_stop=True)))


def _each_record(change: Callable[[Any], object]) -> Mutant:
    """A mutant that changes each record with scores in place."""
    return Mutant(generate=each(lambda m: [change(record) for record in scored_tokens(m)]))


def _reverse(record: Any) -> None:
    reordered = list(candidates_of(record))[::-1]
    del candidates_of(record)[:]
    candidates_of(record).extend(reordered)


def _add_itself(record: Any) -> None:
    found = candidates_of(record)
    if found and record.token_id not in [candidate.token_id for candidate in found]:
        found.add(token_id=record.token_id, logprob=record.logprob)


def _zero_if_rare(record: Any) -> None:
    if record.token_id not in [candidate.token_id for candidate in candidates_of(record)]:
        record.logprob = 0.0


def _unbounded(record: Any) -> None:
    for scored in (record, *candidates_of(record)):
        if scored.logprob <= -9999:
            scored.logprob = -math.inf


def _zero_rank(record: Any) -> None:
    if record.HasField("logprob") and not record.HasField("rank"):
        record.rank = 0


candidates_come_in_reverse = _each_record(_reverse)
token_is_added_to_its_candidates = _each_record(_add_itself)
token_outside_the_best_scores_zero = _each_record(_zero_if_rare)
unknown_rank_is_sent_as_zero = _each_record(_zero_rank)
minus_infinity_goes_out_raw = _each_record(_unbounded)


def _textless(message: Message) -> None:
    if has_tokens(message) and any(record.HasField("logprob") for record in body(message).tokens):
        body(message).text = ""


text_is_lost_beside_scores = Mutant(generate=each(_textless))


def _cumulative(call: Call) -> Alteration:
    sent: list[Any] = []

    def step(message: Message) -> Iterable[Message]:
        if has_tokens(message):
            sent.extend(list(body(message).logprobs))
            del body(message).logprobs[:]
            body(message).logprobs.extend(sent)
        return (message,)

    return step


entries_are_cumulative = Mutant(generate=streamed(_cumulative))
complete_is_not_scored = Mutant(generate=each(lambda m: m.complete.ClearField("logprobs") if is_end(m) else None))


# What is asked for.


class _Asked:
    """The settings for scores in a request message of either protocol; ``None``: not asked for."""

    def __init__(self, request: Message) -> None:
        self._request = request
        self._neutral = hasattr(request, "response")

    def get(self, which: str) -> int | None:
        if not self._neutral:
            field = "logprobs" if which == "output" else "prompt_logprobs"
            config = self._request.output_config
            return getattr(config, field) if config.HasField(field) else None
        response = self._request.response
        if not getattr(response, f"return_{which}_logprobs"):
            return None
        return int(getattr(response, f"{which}_candidates").top_n)

    def set(self, which: str, count: int | None) -> None:
        if not self._neutral:
            field = "logprobs" if which == "output" else "prompt_logprobs"
            self._request.output_config.ClearField(field)
            if count is not None:
                setattr(self._request.output_config, field, count)
            return
        setattr(self._request.response, f"return_{which}_logprobs", count is not None)
        getattr(self._request.response, f"{which}_candidates").top_n = count or 0


def _asks(change: Callable[[_Asked], object]) -> Mutant:
    return Mutant(generate=asked(lambda request: change(_Asked(request))))


def _zero_for_none(settings: _Asked) -> None:
    for which in ("output", "prompt"):
        settings.set(which, settings.get(which) or None)


def _one_more(settings: _Asked) -> None:
    count = settings.get("output")
    settings.set("output", None if count is None else count + 1)


def _prompt_for_output(settings: _Asked) -> None:
    count = settings.get("prompt")
    settings.set("output", settings.get("output") if count is None else count)


scores_never_come = _asks(lambda settings: settings.set("output", None))
zero_candidates_mean_no_scores = _asks(_zero_for_none)
one_candidate_too_many_comes = _asks(_one_more)
prompt_setting_serves_the_output = _asks(_prompt_for_output)
output_is_always_scored = _asks(lambda settings: settings.set("output", settings.get("output") or 1))
prompt_is_always_scored = _asks(lambda settings: settings.set("prompt", settings.get("prompt") or 1))

OPENENGINE = ("openengine",)
SMG = ("smg",)
OWN = "OE-LP-001 OE-LP-003 SMG-LP-001 SMG-LP-003 SMG-CMP-009"

FAULTS = (
    Fault(
        "scores_are_shifted_by_one",
        caught_by={
            "logprobs/each_token_has_its_own_score": OWN,
            "logprobs/held_tokens_keep_their_scores": "OE-LP-004 SMG-CMP-009",
            "logprobs/scores_stay_with_their_sequence": "OE-LP-003 SMG-LP-003",
        },
    ),
    Fault(
        "first_token_is_not_scored",
        "F081",
        caught_by={"logprobs/first_token_after_empty_steps_has_its_score": "OE-LP-001 SMG-LP-001"},
    ),
    Fault(
        "first_candidates_of_a_step_serve_all",
        "F079",
        caught_by={"logprobs/tokens_of_one_step_have_candidates_of_their_own": "OE-LP-003 SMG-LP-001"},
    ),
    Fault(
        "worst_candidates_are_offered",
        caught_by={"logprobs/candidates_are_the_best_ones": "OE-LP-009 SMG-LP-001 SMG-LP-005"},
    ),
    Fault(
        "candidates_come_in_reverse",
        caught_by={"logprobs/best_candidate_comes_first": "OE-LP-012 SMG-LP-005"},
    ),
    Fault(
        "token_is_added_to_its_candidates",
        caught_by={
            "logprobs/token_outside_the_best_is_not_added_to_them": "OE-LP-010 SMG-LP-005",
            "logprobs/candidates_are_the_best_ones": "OE-LP-009 SMG-LP-001 SMG-LP-005",
        },
    ),
    Fault(
        "token_outside_the_best_scores_zero",
        caught_by={"logprobs/token_outside_the_best_has_a_real_score": "OE-LP-001 SMG-LP-004"},
    ),
    Fault(
        "scores_never_come",
        "F065",
        caught_by={
            "logprobs/each_token_has_its_own_score": OWN,
            "logprobs/scores_come_or_are_refused": "OE-LP-001 SMG-LP-001",
        },
    ),
    Fault(
        "zero_candidates_mean_no_scores",
        caught_by={"logprobs/zero_candidates_leave_the_score": "OE-LP-015 SMG-LP-002"},
    ),
    Fault(
        "zero_candidates_mean_no_scores",
        caught_by={"logprobs/no_candidate_selection_leaves_the_score": "OE-LP-015"},
        protocols=OPENENGINE,
    ),
    Fault(
        "one_candidate_too_many_comes",
        caught_by={
            "logprobs/candidates_are_the_best_ones": "OE-LP-009 SMG-LP-001 SMG-LP-005",
            "logprobs/zero_candidates_leave_the_score": "OE-LP-015 SMG-LP-002",
        },
    ),
    Fault(
        "output_is_always_scored",
        caught_by={"logprobs/no_scores_without_being_asked": "OE-LP-002 SMG-LP-001"},
    ),
    Fault(
        "prompt_is_always_scored",
        caught_by={
            "logprobs/no_prompt_without_being_asked": "OE-GEN-005 SMG-CMP-010",
            "logprobs/prompt_and_output_scores_are_independent": "OE-LP-017 SMG-CMP-010",
        },
    ),
    Fault(
        "prompt_is_always_scored",
        caught_by={"logprobs/candidate_selection_alone_has_no_effect": "OE-LP-016"},
        protocols=OPENENGINE,
    ),
    Fault(
        "prompt_setting_serves_the_output",
        caught_by={"logprobs/prompt_and_output_scores_are_independent": "OE-LP-017 SMG-LP-001"},
    ),
    Fault(
        "unknown_rank_is_sent_as_zero",
        caught_by={"logprobs/unknown_rank_is_absent": "OE-LP-018"},
        protocols=OPENENGINE,
    ),
    Fault(
        "minus_infinity_goes_out_raw",
        "F084",
        caught_by={"logprobs/minus_infinity_is_sent_as_a_finite_number": "OE-LP-019 SMG-LP-010"},
    ),
    Fault(
        "text_is_lost_beside_scores",
        caught_by={"logprobs/scores_change_no_text": "OE-LP-023"},
        protocols=OPENENGINE,
    ),
    Fault(
        "stop_keeps_its_scores",
        caught_by={"logprobs/excluded_stop_leaves_no_scores_behind": "OE-LP-024 SMG-CMP-009"},
    ),
    Fault(
        "entries_are_cumulative",
        "F080",
        caught_by={"logprobs/each_entry_names_its_token": "SMG-CHK-009"},
        protocols=SMG,
    ),
    Fault(
        "complete_is_not_scored",
        caught_by={"logprobs/chunks_and_complete_have_the_same_scores": "SMG-LP-009"},
        protocols=SMG,
    ),
)
