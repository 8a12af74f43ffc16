"""The pages of the console, one file per page, and the table of all pages."""
