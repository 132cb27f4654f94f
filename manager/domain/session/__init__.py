"""The rules of sessions: requests, admission, states and the state machine. Pure."""
