"""What is remembered: attempts, evaluations with raw samples, the MAP-Elites view, export."""
