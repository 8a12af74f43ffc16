"""Made by `make protos` from apache/rocketmq/v2/service.proto; do not edit."""

from services.rpc.generated import TYPES

globals().update(TYPES.names_of("apache/rocketmq/v2/service.proto"))
