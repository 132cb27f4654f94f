"""The gRPC server: who calls, what they may do, limits, errors, pages. No service of its own."""
