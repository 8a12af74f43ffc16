"""Made by `make protos` from grpc_reflection/v1alpha/reflection.proto; do not edit."""

from services.rpc.generated import TYPES

globals().update(TYPES.names_of("grpc_reflection/v1alpha/reflection.proto"))
