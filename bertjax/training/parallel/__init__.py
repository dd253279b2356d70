"""How a step uses many devices: the sharding table, strategies, attention implementations, processes."""
