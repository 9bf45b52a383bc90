"""One file for each serving engine: what it is asked, and what its answers mean."""
