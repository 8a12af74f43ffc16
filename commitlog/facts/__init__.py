"""The facts of records, and the bodies of acknowledgements and leases."""
