"""The Race tab: setup, lanes side by side, inspector, recorded runs."""
