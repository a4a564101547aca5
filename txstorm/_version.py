"""The version, defined in this one place; `setup.cfg` and the package read it from here."""

__version__ = "0.1.0"
