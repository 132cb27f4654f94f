"""The gRPC services: authenticate, authorise, translate, call. No decisions."""
