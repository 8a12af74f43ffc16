"""Stores on disk, and one store on several machines."""
