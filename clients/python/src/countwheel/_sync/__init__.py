"""The client for threads: made from ``_async`` by ``tools/generate.py``, but for ``io.py``."""
