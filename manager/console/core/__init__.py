"""Rules of the console: addresses, sources, cookies, frames, limits. Pure."""
