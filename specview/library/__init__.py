"""Kept runs: index, keeping, import, export."""
