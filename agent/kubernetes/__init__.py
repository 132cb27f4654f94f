"""Kernels as pods of a Kubernetes cluster, on the node that the agent runs on."""
