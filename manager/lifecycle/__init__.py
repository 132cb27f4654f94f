"""How sessions live: the state machines, which are pure, and the controllers that move sessions along them."""
