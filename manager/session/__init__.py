"""What a session is and what may be done with it: accept a request, end it, move it."""
