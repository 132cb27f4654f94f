"""HTTP to ports of sessions: addresses, tickets and cookies, the engine that speaks HTTP,
and the relay from it to a kernel.
"""
