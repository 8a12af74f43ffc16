"""What the scripts above are made of: a folder for each that has several files, beside it what they share."""
