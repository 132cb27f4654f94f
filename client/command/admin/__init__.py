"""Commands on accounts and on the cluster."""
