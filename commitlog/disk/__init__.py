"""The disk operations of a store, and the disk that uses operating system files."""
