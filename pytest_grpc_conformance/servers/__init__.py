"""One gRPC server library behind one small interface."""
