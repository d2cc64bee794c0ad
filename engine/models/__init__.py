"""The target models: forward passes in torch."""
