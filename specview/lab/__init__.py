"""What the ledger says beyond its own figures: why a lane is fast or slow, what would be faster, and whether it is exact."""
