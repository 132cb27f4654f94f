"""Channels to agents: mutual TLS, each agent known by the name in its certificate."""

from __future__ import annotations

import grpc
import grpc.aio

_OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Without it, megabytes pile up here for a user who does not read.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
)


class Dialer:
    """Opens channels to agents with the manager's certificate. The caller closes them."""

    def __init__(self, credentials: grpc.ChannelCredentials) -> None:
        self._credentials = credentials

    def open(self, agent_id: str, address: str) -> grpc.aio.Channel:
        """A new channel of its own: a slow stream on one holds up nothing on another."""
        options = (
            *_OPTIONS,
            ("grpc.ssl_target_name_override", f"{agent_id}.agent.retinue"),
            ("grpc.use_local_subchannel_pool", 1),
        )
        return grpc.aio.secure_channel(address, self._credentials, options=options)
