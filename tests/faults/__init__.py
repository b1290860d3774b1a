"""Planted faults: each case is shown to fail, with the right requirement, on a server that breaks it."""
