import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExportMetricsServiceRequest(_message.Message):
    __slots__ = ("metrics",)
    METRICS_FIELD_NUMBER: _ClassVar[int]
    metrics: _containers.RepeatedCompositeFieldContainer[Metric]
    def __init__(self, metrics: _Optional[_Iterable[_Union[Metric, _Mapping]]] = ...) -> None: ...

class ExportMetricsServiceResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Metric(_message.Message):
    __slots__ = ("metric_descriptor", "timeseries")
    METRIC_DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    TIMESERIES_FIELD_NUMBER: _ClassVar[int]
    metric_descriptor: MetricDescriptor
    timeseries: _containers.RepeatedCompositeFieldContainer[TimeSeries]
    def __init__(self, metric_descriptor: _Optional[_Union[MetricDescriptor, _Mapping]] = ..., timeseries: _Optional[_Iterable[_Union[TimeSeries, _Mapping]]] = ...) -> None: ...

class MetricDescriptor(_message.Message):
    __slots__ = ("name", "label_keys")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABEL_KEYS_FIELD_NUMBER: _ClassVar[int]
    name: str
    label_keys: _containers.RepeatedCompositeFieldContainer[LabelKey]
    def __init__(self, name: _Optional[str] = ..., label_keys: _Optional[_Iterable[_Union[LabelKey, _Mapping]]] = ...) -> None: ...

class LabelKey(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class TimeSeries(_message.Message):
    __slots__ = ("start_timestamp", "label_values", "points")
    START_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    LABEL_VALUES_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    start_timestamp: _timestamp_pb2.Timestamp
    label_values: _containers.RepeatedCompositeFieldContainer[LabelValue]
    points: _containers.RepeatedCompositeFieldContainer[Point]
    def __init__(self, start_timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., label_values: _Optional[_Iterable[_Union[LabelValue, _Mapping]]] = ..., points: _Optional[_Iterable[_Union[Point, _Mapping]]] = ...) -> None: ...

class LabelValue(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: str
    def __init__(self, value: _Optional[str] = ...) -> None: ...

class Point(_message.Message):
    __slots__ = ("int64_value", "double_value", "distribution_value")
    INT64_VALUE_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_VALUE_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTION_VALUE_FIELD_NUMBER: _ClassVar[int]
    int64_value: int
    double_value: float
    distribution_value: DistributionValue
    def __init__(self, int64_value: _Optional[int] = ..., double_value: _Optional[float] = ..., distribution_value: _Optional[_Union[DistributionValue, _Mapping]] = ...) -> None: ...

class DistributionValue(_message.Message):
    __slots__ = ("sum", "bucket_options", "buckets")
    class BucketOptions(_message.Message):
        __slots__ = ("explicit",)
        class Explicit(_message.Message):
            __slots__ = ("bounds",)
            BOUNDS_FIELD_NUMBER: _ClassVar[int]
            bounds: _containers.RepeatedScalarFieldContainer[float]
            def __init__(self, bounds: _Optional[_Iterable[float]] = ...) -> None: ...
        EXPLICIT_FIELD_NUMBER: _ClassVar[int]
        explicit: DistributionValue.BucketOptions.Explicit
        def __init__(self, explicit: _Optional[_Union[DistributionValue.BucketOptions.Explicit, _Mapping]] = ...) -> None: ...
    class Bucket(_message.Message):
        __slots__ = ("count",)
        COUNT_FIELD_NUMBER: _ClassVar[int]
        count: int
        def __init__(self, count: _Optional[int] = ...) -> None: ...
    SUM_FIELD_NUMBER: _ClassVar[int]
    BUCKET_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    sum: float
    bucket_options: DistributionValue.BucketOptions
    buckets: _containers.RepeatedCompositeFieldContainer[DistributionValue.Bucket]
    def __init__(self, sum: _Optional[float] = ..., bucket_options: _Optional[_Union[DistributionValue.BucketOptions, _Mapping]] = ..., buckets: _Optional[_Iterable[_Union[DistributionValue.Bucket, _Mapping]]] = ...) -> None: ...
