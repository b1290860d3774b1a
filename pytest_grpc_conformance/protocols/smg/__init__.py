"""SMG's protocol for TensorRT-LLM, ``trtllm.TrtllmService``. Importing it loads neither grpc nor protobuf."""

from pytest_grpc_conformance.protocols.smg.protocol import SMG

__all__ = ["SMG"]
