"""Which drafted tokens are committed."""
