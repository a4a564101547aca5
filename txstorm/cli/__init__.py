"""The command line: ``txstorm`` and ``python -m txstorm``."""
