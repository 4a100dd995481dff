"""Identity of the kernel's source, without importing it."""

from __future__ import annotations

import hashlib
from pathlib import Path


def kernel_digest() -> str:
    """16 hexadecimal digits over the kernel's source: measurements of two of them are never compared."""
    return hashlib.sha256(Path(__file__).with_name("pfa.py").read_bytes()).hexdigest()[:16]
