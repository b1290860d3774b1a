# mypy: disable-error-code="type-arg"
from pytest_grpc_conformance.protocols.openengine.bindings import generation_pb2 as _generation_pb2
from pytest_grpc_conformance.protocols.openengine.bindings import kv_pb2 as _kv_pb2
from pytest_grpc_conformance.protocols.openengine.bindings import lifecycle_pb2 as _lifecycle_pb2
from pytest_grpc_conformance.protocols.openengine.bindings import lora_pb2 as _lora_pb2
from pytest_grpc_conformance.protocols.openengine.bindings import model_pb2 as _model_pb2
from pytest_grpc_conformance.protocols.openengine.bindings import server_pb2 as _server_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
