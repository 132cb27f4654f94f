"""What decides about endpoints: pure functions over plain values, with the time passed in."""
