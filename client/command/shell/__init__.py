"""What commands share: options, the connection, the terminal, signals and exit codes."""
