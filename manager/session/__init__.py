"""Sessions and the operations on them: accept a request, end a session, move it."""
