"""Made by `make protos` from opentelemetry/proto/common/v1/common.proto; do not edit."""

from services.rpc.generated import TYPES

globals().update(TYPES.names_of("opentelemetry/proto/common/v1/common.proto"))
