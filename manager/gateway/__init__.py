"""HTTP to ports of sessions: addresses, tickets and cookies, the program that speaks HTTP, and the way from it to a kernel."""
