"""The CI lists that ship with the suite."""
