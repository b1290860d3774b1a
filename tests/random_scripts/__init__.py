"""Plays at random, and how a violation that they find is reported."""
