"""The web console: its files, log-in, and the bridge from browsers to the manager's own API."""
