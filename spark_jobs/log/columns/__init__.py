"""Decodes the fields of many records at once into columns."""
