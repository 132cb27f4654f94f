"""Sessions and what belongs to one: kernels, dependencies, conditions, output, use, webhooks."""
