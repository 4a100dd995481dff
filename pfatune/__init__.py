"""pfatune: tile autotuning for the PyPTO FP8 paged flash attention kernel on Ascend 950."""

__version__ = "0.1.0"
