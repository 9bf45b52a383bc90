"""The Theory tab."""
