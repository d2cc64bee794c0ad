"""Confinement of code that somebody else wrote: three levels behind one interface, limits, and a watchdog."""
