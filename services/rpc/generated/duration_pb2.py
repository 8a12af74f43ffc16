"""Made by `make protos` from google/protobuf/duration.proto; do not edit."""

from services.rpc.generated import TYPES

globals().update(TYPES.names_of("google/protobuf/duration.proto"))
