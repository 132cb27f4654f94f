"""How a node becomes an agent and stays one: identity, certificate, announcement, managers."""
