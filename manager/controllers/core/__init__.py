"""Rules of controllers. Pure."""
