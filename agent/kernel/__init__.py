"""Programs and files that are put inside a kernel."""
