"""Lossless 12-bit weights: the format, its file, the CPU reference and the fused GPU products."""
