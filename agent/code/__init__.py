"""Running users' code: Jupyter kernels inside sessions' kernels, and the runs that are given to them."""
