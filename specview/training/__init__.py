"""Training drafters for a target: data, objectives, loop, measurement and export.

Importing this package loads nothing heavy; its modules import torch.
"""
