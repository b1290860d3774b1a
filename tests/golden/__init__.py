"""The golden files, and what a run makes of them."""
