"""Who proposes tokens: one file a drafter, and the registry."""
