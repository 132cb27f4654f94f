"""Pure rules of native process kernels."""
