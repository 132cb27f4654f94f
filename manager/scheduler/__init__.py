"""The loop around the scheduling core: keeps its cache, plans passes, commits them, explains what waits."""
