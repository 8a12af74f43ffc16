"""Clients that are connected: sessions and their streams, settings, questions to producers."""
