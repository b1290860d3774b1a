"""A pytest plugin and conformance suite for gRPC servers that stream LLM tokens."""

__version__ = "0.1.0"
