"""Memory measured: blocks by owner, the allocator's history replayed, and both held against the ledgers."""
