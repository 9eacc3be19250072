"""ninfer: an inference engine for the Qwen3.5/3.6/3.8 hybrid models on one device.

The library entry is `ninfer.runtime.Engine`.
"""

from ninfer.version import __version__

__all__ = ["__version__"]
