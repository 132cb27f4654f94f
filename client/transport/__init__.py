"""The way to a manager: channels, calls and streams, their repetition, and their errors."""
