"""Specifications of containers, labels of images, and the progress of pulls. Pure."""
