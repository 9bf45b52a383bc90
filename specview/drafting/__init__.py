"""Drafting methods, one file each, behind one protocol and one registry."""
