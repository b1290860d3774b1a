"""What the README and the examples show must be so."""
