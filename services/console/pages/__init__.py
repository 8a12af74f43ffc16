"""The pages of the console: one file for each page, and the table of all."""
