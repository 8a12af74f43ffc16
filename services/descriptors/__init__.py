"""Message types from serialized descriptor sets: their classes (`message_types`), and how a set is made
(`compiling`)."""
