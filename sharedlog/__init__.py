"""The shared log of a cluster: the record format, the engines, the readers, and leader election."""
