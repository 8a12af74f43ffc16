"""Made by `make protos` from opentelemetry/proto/metrics/v1/metrics.proto; do not edit."""

from services.rpc.generated import TYPES

globals().update(TYPES.names_of("opentelemetry/proto/metrics/v1/metrics.proto"))
