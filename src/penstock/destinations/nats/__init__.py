"""Destination `nats`: changes as messages of NATS JetStream."""
