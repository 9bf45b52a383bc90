"""Races in series: sweeps, tuning, prompt sets, the exit scan."""
