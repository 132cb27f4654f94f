"""The rules of code runs. Pure."""
