"""What is sent to which webhook, how it is signed, and when it is tried again. Pure."""
