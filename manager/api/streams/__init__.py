"""Services that reach into running kernels: commands, code, files, ports, output, usage."""
