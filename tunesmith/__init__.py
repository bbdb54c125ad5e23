"""Fine-tune Gemma on your own data with one recipe file."""

__version__ = "0.1.0"
