"""The compiled topology: which bolts run in which stage and phase, and how that reads. Pure."""
