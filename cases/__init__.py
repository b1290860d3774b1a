"""Conformance cases: one function, one requirement."""
