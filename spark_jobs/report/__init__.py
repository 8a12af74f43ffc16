"""What an audit found, for people: figures, pictures, one HTML file."""
