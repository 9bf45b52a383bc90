"""Races as pictures: still, moving, and their plots as drawings."""
