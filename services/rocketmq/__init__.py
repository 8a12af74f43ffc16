"""Stores from and to Apache RocketMQ; only `tidewheel store import` and `export` load it."""
