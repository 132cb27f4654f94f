"""What follows from the loss of an agent: a package, so that its cluster ends with its last test."""
