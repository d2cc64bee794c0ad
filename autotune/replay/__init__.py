"""Exact replay: a recording of the target's answers tells what any policy would have had accepted, without a target."""
