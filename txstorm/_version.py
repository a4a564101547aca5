"""The version number, defined only here; `setup.cfg` and the package read it from this module."""

__version__ = "0.1.0"
