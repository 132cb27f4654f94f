"""The table's revisions and the sums of traffic. Pure."""
