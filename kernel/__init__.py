"""The kernel being tuned: shapes, configurations, legality, the PyPTO source and its golden.

Only the modules that run the kernel import torch or pypto; the rest is standard library,
so that a tuner or a serving engine can import it at no cost.
"""
