"""The public Python client library and the `retinue` command line."""
