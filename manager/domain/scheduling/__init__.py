"""What a scheduler is told of sessions and agents."""
