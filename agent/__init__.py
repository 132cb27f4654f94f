"""The agent beside every node: starts kernels and joins them with private networks."""

from pkgutil import extend_path

import retinue.rpc.fork_support  # noqa: F401 - before gRPC is imported

# The generated stubs of the contract are another part of this package, in a checkout in another folder.
__path__ = extend_path(__path__, __name__)
