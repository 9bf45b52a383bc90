"""Drafting methods, one file each: method.py says what a method is, registry.py collects them."""
