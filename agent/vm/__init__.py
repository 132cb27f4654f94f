"""Runs kernels as virtual machines: QEMU, Debian's Linux, and a first process of our own inside."""
