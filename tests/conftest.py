"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is slow, not wrong.
settings.register_profile("pfatune", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=20)
settings.load_profile("pfatune")
