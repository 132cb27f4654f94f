"""Networks as they should be, what there is, and the steps between. Pure."""
