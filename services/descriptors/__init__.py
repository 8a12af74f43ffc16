"""Message types from serialized descriptor sets: loading (`message_types`) and generation (`compiling`)."""
