"""Pure parts: how configuration is written."""
