"""Links to agents: desired state goes down, reports come up."""
