"""What a container is made of, what an image says of itself, how far a pull has come. Pure."""
