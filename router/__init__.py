"""The router: serves endpoints by an Envoy that it starts, adopts and configures; no request passes through Python."""

from pkgutil import extend_path

import retinue.rpc.fork_support  # noqa: F401 - before gRPC is imported

# The generated stubs of the contract are another part of this package, in a checkout in another folder.
__path__ = extend_path(__path__, __name__)
