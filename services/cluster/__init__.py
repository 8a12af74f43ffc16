"""A cluster node, which is a broker that leads the cluster or follows the leader through a shared log."""
