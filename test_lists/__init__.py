"""Lists that select cases for a CI stage."""
