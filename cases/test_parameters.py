"""What a request asks for reaches the engine as it was sent; what a server does not know changes nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Prompt, one_by_one, script, tokens
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.protocols.collected import Collected
from pytest_grpc_conformance.targets.base import Target

TOLD = tokens(3)
SAMPLING: dict[str, float | int] = {
    "temperature": 0.75,
    "top_p": 0.5,
    "top_k": 40,
    "min_p": 0.25,
    "frequency_penalty": -0.5,
    "presence_penalty": 1.5,
    "repetition_penalty": 1.25,
    "seed": 42,
}
"""Fields that both protocols have under one name, with values that single precision holds exactly."""
UNKNOWN_VARINT = b"\xc0\xa9\x07\x2a"
"""Field 15000 with the value 42, which no message of either protocol has."""
RETIRED = b"\x38\x02\x40\x02\x4a\x03\x0a\x01\x05\x52\x03\x0a\x01\x06"
"""Fields 7 to 10 as an old client sent them: end_id, pad_id, bad_words, stop_words."""


def _message(target: Target, request: Request) -> Any:
    return target.protocol.to_message(request, model=target.model)


def _sampling(message: Any) -> Any:
    """The part of a request message that holds sampling parameters."""
    return message.sampling if hasattr(message, "sampling") else message.sampling_config


def _answer(target: Target, request: Request, message: Any = None) -> Collected:
    """The whole answer to a request, of which ``message`` is the form to send if it is given."""
    if SCRIPTED in target.capabilities:
        target.prepare(request.request_id, script(one_by_one(TOLD)), open=True)
    message = _message(target, request) if message is None else message
    return asserts.succeeded(target.client.send(message, label=request.request_id), request)


def _same_answer(collected: Collected) -> None:
    """The answer is that of the plain request."""
    asserts.token_ids(TOLD, collected.sequences[0].tokens, "sequence 0")


def _asked_of(target: Target) -> GenerationParameters:
    """The parameters of the latest submission."""
    return target.engine.submissions[-1].parameters


def _prompt_of(target: Target) -> Prompt:
    """The prompt of the latest submission."""
    return target.engine.submissions[-1].prompt


def _sampled(target: Target, **values: float) -> GenerationParameters:
    """What reaches the engine of a request with these sampling values."""
    message = _message(target, Request("sampled"))
    for name, value in values.items():
        setattr(_sampling(message), name, value)
    _answer(target, Request("sampled"), message)
    return _asked_of(target)


# Sampling.


@requirement("OE-GEN-032", "SMG-SMP-017", needs=(SCRIPTED,))
@pytest.mark.parametrize("name", SAMPLING)
def test_sampling_value_reaches_the_engine(grpc_target: Target, name: str) -> None:
    """The server SHOULD hand each sampling value to the engine as it was sent."""
    parameters = _sampled(grpc_target, **{name: SAMPLING[name]})
    asserts.parameter(name, SAMPLING[name], getattr(parameters, name))


@requirement("OE-GEN-032", "SMG-SMP-017", needs=(SCRIPTED,))
def test_sampling_values_reach_the_engine_together(grpc_target: Target) -> None:
    """The server SHOULD hand all sampling values of a request to the engine, none in another's place."""
    parameters = _sampled(grpc_target, **SAMPLING)
    for name, value in SAMPLING.items():
        asserts.parameter(name, value, getattr(parameters, name))


@requirement("OE-GEN-032", "SMG-SMP-017", needs=(SCRIPTED,))
@pytest.mark.parametrize("seed", [2**64 - 1, 2**53 + 1, 2**32], ids=hex)
def test_seed_keeps_all_its_bits(grpc_target: Target, seed: int) -> None:
    """The server SHOULD hand a 64-bit seed to the engine with all its bits."""
    asserts.parameter("seed", seed, _sampled(grpc_target, seed=seed).seed)


@requirement("OE-GEN-032", "SMG-SMP-017", needs=(SCRIPTED,))
@pytest.mark.parametrize("count", [2, 4], ids=lambda count: f"n={count}")
def test_number_of_sequences_reaches_the_engine(grpc_target: Target, count: int) -> None:
    """The server SHOULD ask the engine for as many sequences as the request does."""
    _answer(grpc_target, Request("many", num_sequences=count, temperature=1.0))
    asserts.parameter("num_sequences", count, _asked_of(grpc_target).num_sequences)


@requirement("OE-GEN-032", needs=(SCRIPTED,))
@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty"])
def test_sampling_value_keeps_double_precision(grpc_target: Target, name: str) -> None:
    """The server SHOULD hand sampling values to the engine in double precision."""
    asserts.parameter(name, 0.1, getattr(_sampled(grpc_target, **{name: 0.1}), name))


@requirement("SMG-SMP-017", needs=(SCRIPTED,))
@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty"])
def test_sampling_value_keeps_single_precision(grpc_target: Target, name: str) -> None:
    """The server SHOULD hand sampling values to the engine in single precision, unrounded."""
    sent = struct.unpack("<f", struct.pack("<f", 0.1))[0]
    asserts.parameter(name, sent, getattr(_sampled(grpc_target, **{name: 0.1}), name))


@requirement("OE-GEN-032", "SMG-SMP-017", needs=(SCRIPTED,))
def test_negative_top_k_is_kept_or_refused(grpc_target: Target) -> None:
    """The server SHOULD keep a top_k of -1 as "no cut", or refuse the request."""
    grpc_target.prepare("top-k", script(one_by_one(TOLD)), open=True)
    collected = asserts.ended(grpc_target.generate(Request("top-k", top_k=-1)))
    if collected.status.ok:
        top_k = _asked_of(grpc_target).top_k
        asserts.true("the engine is asked for no cut", top_k in (-1, 0), top_k)
    else:
        asserts.refused(collected, "INVALID_ARGUMENT")


# Presence.


@requirement("OE-WIRE-006", "SMG-SMP-001", "SMG-SMP-002", "SMG-SMP-003", needs=(SCRIPTED,))
@pytest.mark.parametrize("name", ["temperature", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty"])
def test_explicit_zero_is_no_absence(grpc_target: Target, name: str) -> None:
    """The server MUST keep a sampling value of 0 apart from one that was left out."""
    zero = getattr(_sampled(grpc_target, **{name: 0}), name)
    absent = getattr(_sampled(grpc_target), name)
    asserts.parameter(name, 0, zero)
    asserts.true("an absent value reaches the engine as another one", absent != zero, f"{absent!r} and {zero!r}")


@requirement("OE-WIRE-006", "SMG-SMP-003", needs=(SCRIPTED,))
def test_explicit_minimum_of_zero_is_no_absence(grpc_target: Target) -> None:
    """The server MUST keep a token minimum of 0 apart from one that was left out."""
    _answer(grpc_target, Request("zero", min_tokens=0))
    zero = _asked_of(grpc_target).min_tokens
    _answer(grpc_target, Request("absent"))
    absent = _asked_of(grpc_target).min_tokens
    asserts.parameter("min_tokens", 0, zero)
    asserts.true("an absent value reaches the engine as another one", absent != zero, f"{absent!r} and {zero!r}")


@requirement("OE-WIRE-006", "SMG-SMP-003", needs=(SCRIPTED,))
def test_empty_sampling_part_is_like_none(grpc_target: Target) -> None:
    """The server MUST take a sampling part without values like an absent one."""
    message = _message(grpc_target, Request("empty"))
    _sampling(message).SetInParent()
    _answer(grpc_target, Request("empty"), message)
    empty = _asked_of(grpc_target)
    message = _message(grpc_target, Request("without"))
    message.ClearField("sampling" if hasattr(message, "sampling") else "sampling_config")
    _answer(grpc_target, Request("without"), message)
    asserts.equal("what the engine is asked for", _asked_of(grpc_target), empty)


@requirement("OE-WIRE-006", needs=(SCRIPTED,))
def test_absent_token_limit_is_the_engines_own(grpc_target: Target) -> None:
    """The server MUST leave the token limit to the engine when the request has none."""
    told = tokens(64)
    request = Request("unlimited", max_tokens=None)
    collected = asserts.succeeded(grpc_target.play(script(one_by_one(told)), request), request)
    asserts.token_ids(told, collected.sequences[0].tokens, "sequence 0")


# The prompt.


@requirement("OE-GEN-023", needs=(SCRIPTED,))
@pytest.mark.parametrize("ids", [(5, 6, 7), (0,), (1, 2, 2, 2**31 - 1)], ids=["plain", "zero", "special"])
def test_prompt_ids_reach_the_engine(grpc_target: Target, ids: tuple[int, ...]) -> None:
    """The server SHOULD hand the prompt's token ids to the engine as they are."""
    _answer(grpc_target, Request("ids", ids))
    asserts.equal("the prompt's token ids", ids, tuple(_prompt_of(grpc_target).token_ids))


@requirement("OE-GEN-024", needs=(SCRIPTED,))
@pytest.mark.parametrize(
    "text",
    ["plain", "  two  blanks \n", "<s>[INST] h\u00e9 [/INST]", "\u4e16\U0001f600"],
    ids=["plain", "blanks", "tags", "wide"],
)
def test_prompt_text_reaches_the_tokenizer(grpc_target: Target, text: str) -> None:
    """The server SHOULD hand the prompt's text to the tokenizer as it is, without any template."""
    _answer(grpc_target, Request("raw", text))
    prompt = _prompt_of(grpc_target)
    ids = tuple(prompt.token_ids) or grpc_target.engine.tokenize(prompt.text or "")
    asserts.equal("the prompt's token ids", grpc_target.engine.tokenize(text), ids)


@requirement("SMG-GEN-009", needs=(SCRIPTED,))
@pytest.mark.parametrize("text", ["", "something else"], ids=["empty", "other"])
def test_original_text_is_not_used(grpc_target: Target, text: str) -> None:
    """The server MUST generate from the token ids, whatever the original text says."""
    message = _message(grpc_target, Request("text", (5, 6, 7)))
    message.tokenized.original_text = text
    _same_answer(_answer(grpc_target, Request("text", (5, 6, 7)), message))
    asserts.equal("the prompt's token ids", (5, 6, 7), tuple(_prompt_of(grpc_target).token_ids))


@requirement("SMG-GEN-015", needs=(SCRIPTED,))
@pytest.mark.parametrize("exclude", [False, True], ids=["unset", "set"])
def test_output_does_not_repeat_the_prompt(grpc_target: Target, exclude: bool) -> None:
    """The server SHOULD send no prompt token in the output, whether the input is to be excluded or not."""
    request = Request("echo", (5, 6, 7))
    message = _message(grpc_target, request)
    message.output_config.exclude_input_from_output = exclude
    collected = _answer(grpc_target, request, message)
    _same_answer(collected)
    asserts.token_ids(TOLD, collected.sequences[0].finishes[0].output or (), "the final message")


# Repeatability.


def _twice(target: Target, request: Request) -> None:
    """Two runs of a request give the same tokens."""
    runs = []
    for name in ("first", "second"):
        if SCRIPTED in target.capabilities:
            target.prepare(name, script(one_by_one(TOLD)), open=True)
        again = request.but(request_id=name)
        runs.append(asserts.succeeded(target.generate(again), again).sequences[0].token_ids)
    asserts.equal("the tokens of the second run", runs[0], runs[1])


@requirement("OE-GEN-031", "SMG-SMP-006")
def test_same_seed_gives_the_same_tokens(grpc_target: Target) -> None:
    """The server SHOULD give the same tokens for the same seed, prompt and options."""
    _twice(grpc_target, Request("", max_tokens=8, temperature=1.0, seed=7))


@requirement("SMG-SMP-001")
def test_temperature_zero_gives_the_same_tokens(grpc_target: Target) -> None:
    """The server MUST choose the most probable token at temperature 0, so that runs are equal."""
    _twice(grpc_target, Request("", max_tokens=8, temperature=0.0))


# What a server does not know, or need not do anything about.


def _served_all_the_same(target: Target, edit: Callable[[Any], object]) -> None:
    """A request is served after an edit of its message like the plain one."""
    request = Request("plain", max_tokens=3, ignore_eos=True)
    message = _message(target, request)
    edit(message)
    collected = _answer(target, request, message)
    asserts.equal("the number of tokens", 3, len(collected.sequences[0].tokens))


@requirement("OE-WIRE-005")
def test_unknown_field_is_ignored(grpc_target: Target) -> None:
    """The server SHOULD ignore a field that it does not know."""
    _served_all_the_same(grpc_target, lambda message: message.MergeFromString(UNKNOWN_VARINT))


@requirement("SMG-GEN-014")
def test_retired_fields_are_ignored(grpc_target: Target) -> None:
    """The server MUST ignore the retired request fields 7 to 10."""
    _served_all_the_same(grpc_target, lambda message: message.MergeFromString(RETIRED))


@requirement("OE-WIRE-009")
def test_empty_extra_is_accepted(grpc_target: Target) -> None:
    """The server MUST accept a request whose extra part is empty."""
    _served_all_the_same(grpc_target, lambda message: message.extra.SetInParent())


@requirement("OE-WIRE-010")
def test_unknown_keys_of_extra_are_ignored(grpc_target: Target) -> None:
    """The server SHOULD ignore keys of the extra part that the engine does not know."""
    extra = {"zz_unknown": {"a": [1, True, None]}}
    _served_all_the_same(grpc_target, lambda message: message.extra.update(extra))


@requirement("SMG-SMP-004", needs=(SCRIPTED,))
@pytest.mark.parametrize("width", [0, 1], ids=lambda width: f"beams={width}")
def test_one_beam_is_no_beam_search(grpc_target: Target, width: int) -> None:
    """The server SHOULD take a beam width of 0 or 1 as no beam search, and no number of sequences as one."""
    message = _message(grpc_target, Request("beam"))
    message.sampling_config.beam_width = width
    message.sampling_config.num_return_sequences = 0
    _same_answer(_answer(grpc_target, Request("beam"), message))
    asserts.parameter("num_sequences", 1, _asked_of(grpc_target).num_sequences)
