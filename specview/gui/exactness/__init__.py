"""The Exactness tab."""
