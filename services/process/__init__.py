"""What any process of ours does to its system: loop, logs, memory, ports, private files."""
