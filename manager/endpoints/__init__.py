"""Inference endpoints: revisions, replicas, rollouts and autoscaling. `core` decides, the controller acts."""
