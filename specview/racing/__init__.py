"""Lanes side by side on one device: settings, the virtual-time race, repeats, workloads."""
