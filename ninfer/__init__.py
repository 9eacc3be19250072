"""ninfer: an inference engine for the Qwen3.5/3.6/3.8 hybrid models on one device."""

__version__ = "0.1.0"

__all__ = ["__version__"]
