"""The router: serves endpoints by an Envoy that it starts, adopts and configures; no request passes through Python."""

import retinue.rpc.fork_support  # noqa: F401  # before gRPC is imported
