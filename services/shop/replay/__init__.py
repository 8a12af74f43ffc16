"""Order lines, read from a data set or made up from a seed, and the plan of their replay."""
