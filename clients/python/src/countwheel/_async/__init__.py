"""The asynchronous client. ``_sync`` is made from it by ``tools/generate.py``, but for ``io.py``."""
