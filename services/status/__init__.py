"""How a broker does: what is asked of it, and rows that judge the answers."""
