"""Made by `make protos`; do not edit."""

from pathlib import Path

from services.descriptors.message_types import MessageTypes

TYPES = MessageTypes(Path(__file__).with_name("messages.binpb"))
