"""Trains a DFlash drafter for a target on text that the target writes itself: `python -m engine.drafters.train`."""
