"""How tokens are made: models, drafters, verify, cache, step loop, stock."""
