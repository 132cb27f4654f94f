"""The agent's gRPC server."""
