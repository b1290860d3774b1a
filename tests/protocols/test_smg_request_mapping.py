"""What a GenerateRequest becomes for the engine, and what is refused before it gets there."""

from __future__ import annotations

import math
from typing import Any

import pytest
from smg_grpc_proto.generated import trtllm_service_pb2 as pb

from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Prompt, StopText, StopToken
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.protocols.smg.request_mapping import Accepted, CallFailure, read_request
from pytest_grpc_conformance.protocols.smg.translation import to_message

VOCABULARY = 8
LONGEST_INPUT = 16


def request(**fields: Any) -> Any:
    """A valid request with other fields; ``None`` leaves one out."""
    usual = {"request_id": "r1", "tokenized": pb.TokenizedInput(input_token_ids=[1, 2, 3]), "max_tokens": 7}
    return pb.GenerateRequest(**usual | fields)


def sampling(**fields: Any) -> Any:
    return request(sampling_config=pb.SamplingConfig(**fields))


def output(**fields: Any) -> Any:
    return request(output_config=pb.OutputConfig(**fields))


def read(message: Any) -> Accepted:
    """As the servicer reads it: from the wire."""
    return read_request(
        pb.GenerateRequest.FromString(message.SerializeToString()),
        max_input_tokens=LONGEST_INPUT,
        vocabulary_size=VOCABULARY,
    )


def refusal(message: Any) -> CallFailure:
    with pytest.raises(CallFailure) as caught:
        read(message)
    return caught.value


def test_bare_request_leaves_every_parameter_out() -> None:
    """Nothing is defaulted on the way (F173)."""
    assert read(request()) == Accepted("r1", Prompt((1, 2, 3)), GenerationParameters(max_tokens=7), streaming=False)


def test_original_text_stays_behind() -> None:
    message = request(tokenized=pb.TokenizedInput(original_text="hello", input_token_ids=[5]))
    assert read(message).prompt == Prompt((5,), None)


@pytest.mark.parametrize(
    ("field", "parameter", "value"),
    [
        ("temperature", "temperature", 0.5),
        ("top_p", "top_p", 0.25),
        ("top_k", "top_k", 2**31 - 1),
        ("min_p", "min_p", 0.125),
        ("seed", "seed", 2**63 + 1),
        ("min_tokens", "min_tokens", 5),
        ("repetition_penalty", "repetition_penalty", 1.5),
        ("presence_penalty", "presence_penalty", -0.5),
        ("frequency_penalty", "frequency_penalty", 2.0),
    ],
)
def test_sampling_field_reaches_the_engine_unchanged(field: str, parameter: str, value: float) -> None:
    assert getattr(read(sampling(**{field: value})).parameters, parameter) == value


@pytest.mark.parametrize(
    "field",
    ["temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "presence_penalty", "frequency_penalty"],
)
def test_explicit_zero_is_not_absence(field: str) -> None:
    """SMG-SMP-003, F172."""
    value = getattr(read(sampling(**{field: 0})).parameters, field)
    assert value == 0
    assert value is not None
    assert getattr(read(sampling()).parameters, field) is None


@pytest.mark.parametrize(("count", "sequences"), [(0, 1), (1, 1), (4, 4), (256, 256)])
def test_number_of_sequences(count: int, sequences: int) -> None:
    """A plain field: 0 means 1 (SMG-SMP-004)."""
    assert read(sampling(num_return_sequences=count)).parameters.num_sequences == sequences


@pytest.mark.parametrize("width", [0, 1])
def test_beam_width_without_beam_search_is_accepted(width: int) -> None:
    assert read(sampling(beam_width=width)).parameters.num_sequences == 1


@pytest.mark.parametrize("count", [0, 1, 100])
@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_logprobs_count_keeps_its_presence(field: str, count: int) -> None:
    assert getattr(read(output(**{field: count})).parameters, field) == count
    assert getattr(read(output()).parameters, field) is None


def test_stops_and_switches() -> None:
    parameters = read(
        request(
            stop=["a", "bc"],
            stop_token_ids=[0, 9],
            ignore_eos=True,
            include_stop_token_in_output=True,
            streaming=True,
        )
    )
    assert parameters.parameters == GenerationParameters(
        max_tokens=7, stop_texts=("a", "bc"), stop_token_ids=(0, 9), ignore_eos=True, include_stop=True
    )
    assert parameters.streaming


def test_retired_fields_are_ignored() -> None:
    """Fields 7 to 10 once held end_id, pad_id, bad_words and stop_words (SMG-GEN-014)."""
    old = b"\x38\x02\x40\x03" + b"\x4a\x02\x08\x01" + b"\x52\x02\x08\x01"
    message = pb.GenerateRequest.FromString(request().SerializeToString() + old)
    assert read(message) == read(request())


@pytest.mark.parametrize("excluded", [False, True])
def test_exclude_input_from_output_changes_nothing(excluded: bool) -> None:
    assert read(output(exclude_input_from_output=excluded)) == read(request())


def test_full_request_in_disaggregated_params_is_a_plain_request() -> None:
    """Request type 0 is the full request (SMG-ADV-006)."""
    assert read(request(disaggregated_params=pb.DisaggregatedParams())) == read(request())


@pytest.mark.parametrize(
    ("message", "words"),
    [
        pytest.param(request(request_id=""), "request_id", id="no-id"),
        pytest.param(request(tokenized=None), "tokenized is required", id="no-tokenized"),
        pytest.param(request(tokenized=pb.TokenizedInput(original_text="x")), "empty", id="no-input-ids"),
        pytest.param(request(tokenized=pb.TokenizedInput(input_token_ids=[1] * 17)), "longest", id="long-input"),
        pytest.param(request(max_tokens=0), "max_tokens", id="no-max-tokens"),
        pytest.param(request(max_tokens=2**31), "max_tokens", id="max-tokens-above-int32"),
        pytest.param(request(stop=["a", ""]), "stop string", id="empty-stop"),
        pytest.param(request(embedding_bias=[0.0] * 7), "embedding_bias", id="short-embedding-bias"),
        pytest.param(sampling(temperature=-1.0), "temperature", id="negative-temperature"),
        pytest.param(sampling(temperature=math.nan), "temperature", id="nan-temperature"),
        pytest.param(sampling(temperature=math.inf), "temperature", id="infinite-temperature"),
        pytest.param(sampling(top_p=2.0), "top_p", id="top-p-above-one"),
        pytest.param(sampling(top_p=-0.5), "top_p", id="negative-top-p"),
        pytest.param(sampling(top_k=-1), "top_k", id="negative-top-k"),
        pytest.param(sampling(min_p=1.5), "min_p", id="min-p-above-one"),
        pytest.param(sampling(repetition_penalty=0.0), "repetition_penalty", id="no-repetition-penalty"),
        pytest.param(sampling(presence_penalty=math.nan), "presence_penalty", id="nan-presence-penalty"),
        pytest.param(sampling(frequency_penalty=math.inf), "frequency_penalty", id="infinite-penalty"),
        pytest.param(sampling(min_tokens=2**31), "min_tokens", id="min-tokens-above-int32"),
        pytest.param(sampling(num_return_sequences=257), "num_return_sequences", id="too-many-sequences"),
        pytest.param(sampling(beam_width=-1), "beam_width", id="negative-beam-width"),
        pytest.param(output(logprobs=-1), "logprobs", id="negative-logprobs"),
        pytest.param(output(logprobs=101), "logprobs", id="too-many-logprobs"),
        pytest.param(output(prompt_logprobs=101), "prompt_logprobs", id="too-many-prompt-logprobs"),
        pytest.param(
            request(guided_decoding=pb.GuidedDecodingParams(guide_type=99)),
            "guide_type",
            id="unknown-guide-type",
        ),
        pytest.param(
            request(disaggregated_params=pb.DisaggregatedParams(request_type=99)),
            "request_type",
            id="unknown-request-type",
        ),
    ],
)
def test_invalid_request_is_refused_with_its_cause(message: Any, words: str) -> None:
    failure = refusal(message)
    assert failure.code == "INVALID_ARGUMENT"
    assert words in failure.details


@pytest.mark.parametrize(
    ("message", "words"),
    [
        pytest.param(request(guided_decoding=pb.GuidedDecodingParams(guide_type=3, guide="a+")), "guided", id="guided"),
        pytest.param(request(lora_config=pb.LoraConfig(task_id=0)), "lora_config", id="lora"),
        pytest.param(request(prompt_tuning_config=pb.PromptTuningConfig()), "prompt_tuning", id="prompt-tuning"),
        pytest.param(request(multimodal_input=pb.MultimodalInput(image_data=[b"x"])), "multimodal", id="image"),
        pytest.param(request(kv_cache_retention=pb.KvCacheRetentionConfig()), "kv_cache", id="retention"),
        pytest.param(request(lookahead_config=pb.LookaheadConfig()), "lookahead", id="lookahead"),
        pytest.param(request(cache_salt_id=0), "cache_salt_id", id="cache-salt"),
        pytest.param(request(arrival_time=0.0), "arrival_time", id="arrival-time"),
        pytest.param(request(bad=["x"]), "bad", id="bad"),
        pytest.param(request(bad_token_ids=[0]), "bad_token_ids", id="bad-token-ids"),
        pytest.param(request(embedding_bias=[0.0] * VOCABULARY), "embedding_bias", id="embedding-bias"),
        pytest.param(
            request(tokenized=pb.TokenizedInput(input_token_ids=[1], query_token_ids=[1])),
            "tokenized.query_token_ids",
            id="query-ids",
        ),
        pytest.param(
            request(disaggregated_params=pb.DisaggregatedParams(request_type=1)),
            "disaggregated",
            id="prefill-only",
        ),
        pytest.param(
            request(disaggregated_params=pb.DisaggregatedParams(request_type=2)),
            "disaggregated",
            id="decode-only",
        ),
        pytest.param(
            request(disaggregated_params=pb.DisaggregatedParams(ctx_request_id="c")),
            "disaggregated",
            id="linked",
        ),
        pytest.param(sampling(beam_width=2), "beam_width", id="beam-search"),
        pytest.param(sampling(top_p_min=0.0), "sampling_config.top_p_min", id="top-p-min"),
        pytest.param(sampling(top_p_reset_ids=0), "top_p_reset_ids", id="top-p-reset"),
        pytest.param(sampling(top_p_decay=0.5), "top_p_decay", id="top-p-decay"),
        pytest.param(sampling(beam_search_diversity_rate=0.5), "diversity", id="diversity"),
        pytest.param(sampling(prompt_ignore_length=1), "prompt_ignore_length", id="prompt-ignore"),
        pytest.param(sampling(length_penalty=1.0), "length_penalty", id="length-penalty"),
        pytest.param(sampling(early_stopping=1), "early_stopping", id="early-stopping"),
        pytest.param(sampling(no_repeat_ngram_size=2), "no_repeat_ngram_size", id="ngram"),
        pytest.param(sampling(beam_width_array=[1]), "beam_width_array", id="beam-widths"),
        pytest.param(output(return_context_logits=True), "return_context_logits", id="context-logits"),
        pytest.param(output(return_generation_logits=True), "return_generation", id="generation-logits"),
        pytest.param(output(return_encoder_output=True), "return_encoder_output", id="encoder-output"),
        pytest.param(output(return_perf_metrics=True), "return_perf_metrics", id="perf-metrics"),
    ],
)
def test_part_that_cannot_be_honoured_is_refused_by_name(message: Any, words: str) -> None:
    """SMG-GEN-021, F065."""
    failure = refusal(message)
    assert failure.code == "UNIMPLEMENTED"
    assert words in failure.details


def test_every_request_field_is_decided() -> None:
    """A field that a later version of the protocol adds must not be dropped in silence."""
    from pytest_grpc_conformance.protocols.smg.request_mapping import UNSUPPORTED

    honoured = {
        "": "request_id tokenized sampling_config output_config max_tokens streaming guided_decoding "
        "embedding_bias disaggregated_params stop stop_token_ids ignore_eos include_stop_token_in_output",
        "tokenized": "original_text input_token_ids",
        "sampling_config": "beam_width num_return_sequences top_k top_p seed temperature min_tokens "
        "repetition_penalty presence_penalty frequency_penalty min_p",
        "output_config": "logprobs prompt_logprobs exclude_input_from_output",
    }
    for part, names in UNSUPPORTED.items():
        fields = pb.GenerateRequest.DESCRIPTOR.fields_by_name
        descriptor = fields[part].message_type if part else pb.GenerateRequest.DESCRIPTOR
        assert set(descriptor.fields_by_name) == names | set(honoured[part].split())


@pytest.mark.parametrize(
    "neutral",
    [
        pytest.param(Request("r"), id="bare"),
        pytest.param(Request("r", num_sequences=3, temperature=0.0, top_p=0.5, top_k=0, seed=0), id="sampling"),
        pytest.param(Request("r", min_tokens=0, ignore_eos=True, include_stop=True), id="switches"),
        pytest.param(Request("r", stops=(StopText("é"), StopToken(0), StopText("b"))), id="stops"),
        pytest.param(Request("r", logprobs=0, prompt_logprobs=2, streaming=False), id="logprobs"),
    ],
)
def test_neutral_request_comes_through_whole(neutral: Request) -> None:
    accepted = read(to_message(neutral))
    assert accepted == Accepted("r", Prompt((1, 2, 3)), neutral.parameters(), neutral.streaming)
