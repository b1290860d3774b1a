"""The layer that faults of messages are planted in conforms without them, where grpcio by itself does not."""

from __future__ import annotations

from pytest_grpc_conformance.verdict import Verdict
from tests.faults.judge import judge

STRICT = "tests.faults.faults_of_grpc_messages:strict.grpc"
FUNCTIONS = (
    "grpc_messages/message_may_be_split_anywhere",
    "grpc_messages/padding_is_no_content",
    "grpc_messages/padding_is_credited",
    "grpc_messages/padding_longer_than_its_frame_is_refused",
    "grpc_messages/empty_message_is_a_message",
    "grpc_messages/no_request_message_fails",
    "grpc_messages/no_request_message_is_unimplemented",
    "grpc_messages/second_message_is_unimplemented",
    "grpc_messages/truncated_request_fails",
    "grpc_messages/truncated_request_stream_fails",
    "grpc_messages/octets_after_the_message_fail",
    "grpc_messages/unknown_flag_is_internal",
    "grpc_messages/trailing_headers_end_the_request",
    "grpc_compression/unknown_encoding_is_unimplemented",
    "grpc_compression/refusal_announces_known_encodings",
)


def test_strict_layer_conforms() -> None:
    results = judge(STRICT, "grpc", FUNCTIONS, scale="1")
    assert {result.case_id.partition("[")[0] for result in results} == set(FUNCTIONS)
    assert not [(each.case_id, each.failure) for each in results if each.verdict is not Verdict.PASSED]


def test_no_compression_suits_a_client_without_it() -> None:
    functions = ("grpc_compression/no_encoding_that_the_client_lacks",)
    results = judge("tests.faults.faults_of_grpc_compression:compression_unheard.grpc", "grpc", functions)
    assert {each.verdict for each in results} == {Verdict.PASSED}
