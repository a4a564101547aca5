"""Example jobs, each short enough to read in a minute: ``txstorm run jobs.word_count``."""
