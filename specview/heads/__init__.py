"""Trained drafting heads: their public layouts, their weights and their forward passes.

A head reads the target's own features (hidden states) and says which tokens come next. `layouts` reads
what a folder holds without torch; `loaded` is a head beside its target; the drafters of specview.drafting run it.
Importing this package loads nothing heavy; its modules import torch where they compute.
"""
