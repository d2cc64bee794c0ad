"""Several requests at once: one target pass over the rows of all, each request's tokens as if it ran alone."""
