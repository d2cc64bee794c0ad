"""The arithmetic: kernels, each with a plain torch reference beside it. Empty at this stage."""
