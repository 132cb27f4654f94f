"""The contract of a kernel's runtime, records of attempts, and how an attempt ended."""
