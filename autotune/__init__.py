"""How the space is searched: rounds, operators, measurement, token forcing, budget."""
