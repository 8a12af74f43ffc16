"""Results of an audit for people: figures, charts, and one HTML file."""
