"""Limits how many streams a user, or an address without a known user, may have open at a time, by method.

What is counted is what this replica serves; a user of several replicas may have as many at each.
"""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT_LIMIT = 256
LIMITS: Mapping[str, int] = {
    # Each is a connection to an agent and a process in a kernel.
    "/retinue.manager.v1.KernelService/Attach": 64,
    "/retinue.manager.v1.KernelService/ExecuteCode": 64,
    # A browser that loads a large page through port-forward, and a pool of connections to a database in a kernel.
    "/retinue.manager.v1.KernelService/OpenPort": 512,
    # Each is a connection to an agent.
    "/retinue.manager.v1.KernelService/UploadFiles": 32,
    "/retinue.manager.v1.KernelService/DownloadFiles": 32,
    "/retinue.manager.v1.KernelService/ListFiles": 32,
    # Anyone may call the first of these.
    "/grpc.health.v1.Health/Watch": 64,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": 64,
}
