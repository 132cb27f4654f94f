"""The runtime for native processes: sandboxes over the node's own root."""
