"""Made by `make protos` from opentelemetry/proto/collector/metrics/v1/metrics_service.proto; do not edit."""

from services.rpc.generated import TYPES

globals().update(TYPES.names_of("opentelemetry/proto/collector/metrics/v1/metrics_service.proto"))
