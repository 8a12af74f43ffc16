"""A cluster node: a broker that either leads the cluster or follows the leader by reading a shared log."""
