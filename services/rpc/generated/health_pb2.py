"""Made by `make protos` from grpc_health/v1/health.proto; do not edit."""

from services.rpc.generated import TYPES

globals().update(TYPES.names_of("grpc_health/v1/health.proto"))
