"""Parallelism: sharding rules and strategies, mesh, attention implementations, processes."""
