"""The gRPC services: translate, call, answer. They decide nothing."""
