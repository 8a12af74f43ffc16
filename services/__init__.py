"""What runs: the broker that joins the boxes, its fronts, the reference applications and the commands."""
