"""Generated code for the openengine.v1 messages and services; see scripts/generate_bindings.py."""
