"""The Sweep tab."""
