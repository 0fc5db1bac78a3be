"""The version of the package. pyproject.toml repeats it."""

__version__ = "0.2.0"
