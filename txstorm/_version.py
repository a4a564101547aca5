"""The one place that names the version; `setup.cfg` and the package read it from here."""

__version__ = "0.1.0"
