"""Where weights come from: GGUF, safetensors, the embedded model."""
