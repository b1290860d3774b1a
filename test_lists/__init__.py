"""CI test lists over the cases, in the test-db form."""
