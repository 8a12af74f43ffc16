"""Made by `make protos` from opentelemetry/proto/resource/v1/resource.proto; do not edit."""

from services.rpc.generated import TYPES

globals().update(TYPES.names_of("opentelemetry/proto/resource/v1/resource.proto"))
