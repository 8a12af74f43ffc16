"""Filters by tag and by SQL, which select the records for a consumer."""
