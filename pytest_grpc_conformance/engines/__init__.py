"""What produces tokens: scripts, the gated fake engine, and the queue that carries its results to a loop."""
