"""Generates `services/rpc/generated` from the proto files in `services/rpc/protos`, and from the descriptors
of installed libraries: gRPC health and reflection, and OpenTelemetry metrics.

    python -m services.rpc.generate

Only messages are generated. The service is a table of handlers (`services.rpc.serving.service`).

`opencensus.proto` is a local file that contains only the part of OpenCensus metrics that is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

from services.descriptors.compiling import compile_protos

ROOM: Final = Path(__file__).parent
PROTOS: Final = (
    *(f"apache/rocketmq/v2/{name}.proto" for name in ("definition", "service")),
    "opencensus.proto",
)
OTHERS: Final = (health_pb2, reflection_pb2, metrics_service_pb2)


def main(folder: Path = ROOM / "generated") -> None:
    """Write the generated files and replace existing files."""
    others = (one.DESCRIPTOR for one in OTHERS)
    compile_protos(ROOM / "protos", PROTOS, others, folder, "services.rpc.generated")


if __name__ == "__main__":
    main()
