"""Everything that happens later: a hierarchical timing wheel over integers; it knows no messages."""
