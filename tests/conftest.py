"""What holds for every test."""

from __future__ import annotations

import signal

from hypothesis import settings

# A busy machine is slow, not wrong.
settings.register_profile("pfatune", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=20)
settings.load_profile("pfatune")

# Under nohup a hang-up is ignored, and by every process that a test starts: the signals of a terminal instead.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
