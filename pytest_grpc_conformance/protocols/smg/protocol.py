"""The SMG protocol as the suite's stages see it: names, traits, and where each part lives.

The generated code is loaded at first use, so that a run of another protocol does not pay for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pytest_grpc_conformance.engines.base import Engine
from pytest_grpc_conformance.engines.course import Course
from pytest_grpc_conformance.engines.script import Prompt, Script
from pytest_grpc_conformance.protocols.base import (
    AbortAnswer,
    Event,
    Health,
    Message,
    Method,
    Registration,
    Request,
    Traits,
    WireProtocol,
)
from pytest_grpc_conformance.protocols.smg import translation

HEALTHY = "OK"


class SmgProtocol(WireProtocol):
    """``trtllm.TrtllmService``: token ids only, failures as statuses, one ``complete`` per sequence."""

    name: ClassVar[str] = "smg"
    title: ClassVar[str] = "SMG TensorRT-LLM"
    requirement_prefix: ClassVar[str] = "SMG-"
    traits: ClassVar[Traits] = Traits(
        carries_text=False,
        errors_in_band=False,
        repeats_output=True,
        usage_per_sequence=True,
        usage_on_tokens=True,
        prompt_event=False,
        ranks=False,
        reports_eos=False,
        float32_scores=True,
        unary_switch=True,
        # The protocol names no code for a refused duplicate (SMG-GEN-018).
        duplicate_id_codes=frozenset(),
    )

    @property
    def generate(self) -> Method:
        from smg_grpc_proto.generated import trtllm_service_pb2 as pb

        return Method(
            path="/trtllm.TrtllmService/Generate",
            request=pb.GenerateRequest,
            response=pb.GenerateResponse,
            streaming=True,
        )

    def to_message(self, request: Request, *, model: str) -> Message:
        return translation.to_message(request)

    def to_event(self, message: Message) -> Event:
        return translation.to_event(message)

    def request_id_of(self, message: Message) -> str:
        return translation.request_id_of(message)

    def abort(self, channel: Any, request_id: str, timeout: float) -> AbortAnswer:
        """No success is ``NOT_FOUND``: only prose tells unknown, finished and refused apart."""
        from smg_grpc_proto.generated import trtllm_service_pb2 as pb

        response = _stub(channel).Abort(pb.AbortRequest(request_id=request_id), timeout=timeout)
        return AbortAnswer.ABORTED if response.success else AbortAnswer.NOT_FOUND

    def health(self, channel: Any, timeout: float) -> Health:
        from smg_grpc_proto.generated import trtllm_service_pb2 as pb

        response = _stub(channel).HealthCheck(pb.HealthCheckRequest(), timeout=timeout)
        return Health(serving=response.status == HEALTHY, words=response.status)

    def model_name(self, channel: Any, timeout: float) -> str:
        from smg_grpc_proto.generated import trtllm_service_pb2 as pb

        model_id: str = _stub(channel).GetModelInfo(pb.GetModelInfoRequest(), timeout=timeout).model_id
        return model_id

    def servicers(self, engine: Engine) -> Sequence[Registration]:
        from smg_grpc_proto.generated import trtllm_service_pb2_grpc

        from pytest_grpc_conformance.protocols.smg.servicer import TrtllmServicer

        return [Registration(TrtllmServicer(engine), trtllm_service_pb2_grpc.add_TrtllmServiceServicer_to_server)]

    def expected_messages(self, request: Request, prompt: Prompt, script: Script, course: Course) -> list[Message]:
        from pytest_grpc_conformance.protocols.smg.expected import expected_messages

        return expected_messages(request, prompt, script, course)


def _stub(channel: Any) -> Any:
    from smg_grpc_proto.generated import trtllm_service_pb2_grpc

    return trtllm_service_pb2_grpc.TrtllmServiceStub(channel)


SMG = SmgProtocol()
