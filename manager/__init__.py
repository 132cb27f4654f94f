"""The manager: takes sessions, queues them fairly, places them and follows every change."""

import retinue.rpc.fork_support  # noqa: F401  # before gRPC is imported
