"""What can be chosen: deployments, knobs, genomes, outcomes, prompts. Pure Python, no torch."""
