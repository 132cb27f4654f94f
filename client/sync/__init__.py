"""The blocking forms of the classes of the library, written by scripts/generate-sync-client."""
