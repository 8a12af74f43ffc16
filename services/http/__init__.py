"""Client for the HTTP interface of a broker."""
