"""Speed measurements: each module is one command that prints both sides of a comparison from one run."""
