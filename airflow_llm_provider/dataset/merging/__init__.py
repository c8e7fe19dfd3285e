"""From finished shards to the output, and what may be cleaned up afterwards."""
