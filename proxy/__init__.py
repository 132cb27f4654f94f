"""What the router and the manager's gateway share to run Envoy: its program, its resources,
and the server that sends them.
"""
