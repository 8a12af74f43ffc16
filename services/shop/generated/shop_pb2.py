"""Made by `make protos` from shop.proto; do not edit."""

from services.shop.generated import TYPES

globals().update(TYPES.names_of("shop.proto"))
