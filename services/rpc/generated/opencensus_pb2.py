"""Made by `make protos` from opencensus.proto; do not edit."""

from services.rpc.generated import TYPES

globals().update(TYPES.names_of("opencensus.proto"))
