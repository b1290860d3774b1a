"""OpenEngine v1. Importing this loads neither grpc nor the bindings; using ``OPENENGINE`` does."""

from __future__ import annotations

from pytest_grpc_conformance.protocols.openengine.protocol import OPENENGINE, OpenEngine

__all__ = ["OPENENGINE", "OpenEngine"]
