"""What options of `retinue endpoint create` and `deploy` ask for."""

from __future__ import annotations

from typing import Any

import click
import pytest
from google.protobuf import json_format

from retinue.client.command.endpoints.endpoint_options import endpoint_options, revision_options, set_endpoint
from retinue.manager.v1 import endpoint_pb2 as epb


def asked(*arguments: str, base: epb.EndpointSpec | None = None) -> Any:
    """Returns the JSON of what the options make of an endpoint."""
    spec = epb.EndpointSpec()
    spec.CopyFrom(base or spec)

    @click.command()
    @revision_options
    @endpoint_options
    @click.argument("command", nargs=-1)
    def command(**given: Any) -> None:
        set_endpoint(spec, given)

    command.main(list(arguments), standalone_mode=False)
    return json_format.MessageToDict(spec)


def test_options_say_all_that_a_simple_endpoint_needs() -> None:
    found = asked(
        *("--image", "my/model", "--slots", "cpu=2,mem=4g", "-e", "A=b", "--mount", "/data:/models", "--port", "8000"),
        *("--protocol", "grpc", "--readiness", "/health", "--max-concurrency", "8", "--replicas", "pack"),
        *("--metrics-path", "/metrics", "--min", "0", "--max", "5", "--public", "--group", "gpus", "--project", "shop"),
        *("--target", "concurrency=4.5", "--target", "requests-per-second=50", "--target", "custom:depth=3"),
        *("--target", 'prometheus:sum(x{a="b"})=10', "--target", "utilization:cuda.device=60", "--", "serve", "--fast"),
    )
    assert found == {
        "project": "shop",
        "revision": {
            "session": {
                "resourceGroup": "gpus",
                "clusterSize": 1,
                "kernel": {
                    "image": "my/model",
                    "command": ["serve", "--fast"],
                    "environment": {"A": "b"},
                    "slots": {"cpu": "2", "mem": "4g"},
                },
                "mounts": [{"source": "/data", "target": "/models"}],
                "replicaPlacement": "REPLICA_PLACEMENT_PACK",
            },
            "port": 8000,
            "protocol": "APP_PROTOCOL_GRPC",
            "readiness": {"http": {"path": "/health"}},
            "maxConcurrency": 8,
            "metricsPath": "/metrics",
        },
        "scaling": {
            "min": 0,
            "max": 5,
            "metrics": [
                {"concurrency": {}, "target": "4.5"},
                {"requestsPerSecond": {}, "target": "50"},
                {"custom": {"name": "depth"}, "target": "3"},
                {"prometheus": {"query": 'sum(x{a="b"})'}, "target": "10"},
                {"utilization": {"slot": "cuda.device"}, "target": "60"},
            ],
        },
        "access": {"mode": "ACCESS_MODE_PUBLIC"},
    }


def test_options_change_only_what_they_name() -> None:
    base = epb.EndpointSpec()
    json_format.ParseDict(
        {
            "name": "shop",
            "revision": {
                "port": 80,
                "session": {
                    "clusterSize": 3,
                    "kernel": {"image": "one", "command": ["a", "b"], "environment": {"A": "1", "B": "2"}},
                },
            },
        },
        base,
    )
    assert asked(base=base) == json_format.MessageToDict(base)
    revision = asked("--image", "two", "-e", "B=3", "--", "c", base=base)["revision"]
    assert revision == {
        "port": 80,
        "session": {
            "clusterSize": 3,
            "kernel": {"image": "two", "command": ["c"], "environment": {"A": "1", "B": "3"}},
        },
    }


@pytest.mark.parametrize(
    "target", ["concurrency", "concurrency=0", "concurrency=x", "speed=3", "custom=3", "queue:x=3"]
)
def test_targets_are_metrics_with_amounts(target: str) -> None:
    with pytest.raises(click.BadParameter):
        asked("--target", target)
