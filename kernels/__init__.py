"""The arithmetic: kernels, each with a plain torch reference beside it. Not used by the engine yet."""
