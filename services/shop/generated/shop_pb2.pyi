from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Line(_message.Message):
    __slots__ = ("sku", "quantity", "unit_price_pence")
    SKU_FIELD_NUMBER: _ClassVar[int]
    QUANTITY_FIELD_NUMBER: _ClassVar[int]
    UNIT_PRICE_PENCE_FIELD_NUMBER: _ClassVar[int]
    sku: str
    quantity: int
    unit_price_pence: int
    def __init__(self, sku: _Optional[str] = ..., quantity: _Optional[int] = ..., unit_price_pence: _Optional[int] = ...) -> None: ...

class PlaceRequest(_message.Message):
    __slots__ = ("order_id", "customer_id", "lines", "timeout_ms")
    ORDER_ID_FIELD_NUMBER: _ClassVar[int]
    CUSTOMER_ID_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    order_id: str
    customer_id: str
    lines: _containers.RepeatedCompositeFieldContainer[Line]
    timeout_ms: int
    def __init__(self, order_id: _Optional[str] = ..., customer_id: _Optional[str] = ..., lines: _Optional[_Iterable[_Union[Line, _Mapping]]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class OrderRequest(_message.Message):
    __slots__ = ("order_id",)
    ORDER_ID_FIELD_NUMBER: _ClassVar[int]
    order_id: str
    def __init__(self, order_id: _Optional[str] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("order_id", "customer_id", "status", "total_pence", "placed_ms", "due_ms")
    ORDER_ID_FIELD_NUMBER: _ClassVar[int]
    CUSTOMER_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_PENCE_FIELD_NUMBER: _ClassVar[int]
    PLACED_MS_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    order_id: str
    customer_id: str
    status: str
    total_pence: int
    placed_ms: int
    due_ms: int
    def __init__(self, order_id: _Optional[str] = ..., customer_id: _Optional[str] = ..., status: _Optional[str] = ..., total_pence: _Optional[int] = ..., placed_ms: _Optional[int] = ..., due_ms: _Optional[int] = ...) -> None: ...

class AddLine(_message.Message):
    __slots__ = ("add_id", "sku", "quantity")
    ADD_ID_FIELD_NUMBER: _ClassVar[int]
    SKU_FIELD_NUMBER: _ClassVar[int]
    QUANTITY_FIELD_NUMBER: _ClassVar[int]
    add_id: str
    sku: str
    quantity: int
    def __init__(self, add_id: _Optional[str] = ..., sku: _Optional[str] = ..., quantity: _Optional[int] = ...) -> None: ...

class AddRequest(_message.Message):
    __slots__ = ("customer_id", "lines")
    CUSTOMER_ID_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    customer_id: str
    lines: _containers.RepeatedCompositeFieldContainer[AddLine]
    def __init__(self, customer_id: _Optional[str] = ..., lines: _Optional[_Iterable[_Union[AddLine, _Mapping]]] = ...) -> None: ...

class CartRequest(_message.Message):
    __slots__ = ("customer_id",)
    CUSTOMER_ID_FIELD_NUMBER: _ClassVar[int]
    customer_id: str
    def __init__(self, customer_id: _Optional[str] = ...) -> None: ...

class Cart(_message.Message):
    __slots__ = ("customer_id", "quantities")
    class QuantitiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CUSTOMER_ID_FIELD_NUMBER: _ClassVar[int]
    QUANTITIES_FIELD_NUMBER: _ClassVar[int]
    customer_id: str
    quantities: _containers.ScalarMap[str, int]
    def __init__(self, customer_id: _Optional[str] = ..., quantities: _Optional[_Mapping[str, int]] = ...) -> None: ...

class SendRequest(_message.Message):
    __slots__ = ("push_id", "customer_id", "text", "due_ms")
    PUSH_ID_FIELD_NUMBER: _ClassVar[int]
    CUSTOMER_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    push_id: str
    customer_id: str
    text: str
    due_ms: int
    def __init__(self, push_id: _Optional[str] = ..., customer_id: _Optional[str] = ..., text: _Optional[str] = ..., due_ms: _Optional[int] = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("push_id",)
    PUSH_ID_FIELD_NUMBER: _ClassVar[int]
    push_id: str
    def __init__(self, push_id: _Optional[str] = ...) -> None: ...

class Push(_message.Message):
    __slots__ = ("push_id", "schedule_id", "customer_id", "text", "status", "due_ms", "delivered_ms")
    PUSH_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    CUSTOMER_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_MS_FIELD_NUMBER: _ClassVar[int]
    push_id: str
    schedule_id: str
    customer_id: str
    text: str
    status: str
    due_ms: int
    delivered_ms: int
    def __init__(self, push_id: _Optional[str] = ..., schedule_id: _Optional[str] = ..., customer_id: _Optional[str] = ..., text: _Optional[str] = ..., status: _Optional[str] = ..., due_ms: _Optional[int] = ..., delivered_ms: _Optional[int] = ...) -> None: ...

class ScheduleRequest(_message.Message):
    __slots__ = ("schedule_id", "customer_id", "text", "cron", "time_zone")
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    CUSTOMER_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CRON_FIELD_NUMBER: _ClassVar[int]
    TIME_ZONE_FIELD_NUMBER: _ClassVar[int]
    schedule_id: str
    customer_id: str
    text: str
    cron: str
    time_zone: str
    def __init__(self, schedule_id: _Optional[str] = ..., customer_id: _Optional[str] = ..., text: _Optional[str] = ..., cron: _Optional[str] = ..., time_zone: _Optional[str] = ...) -> None: ...

class ScheduleReference(_message.Message):
    __slots__ = ("schedule_id",)
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    schedule_id: str
    def __init__(self, schedule_id: _Optional[str] = ...) -> None: ...

class PushSchedule(_message.Message):
    __slots__ = ("schedule_id", "cron", "time_zone", "active", "delivered_count")
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    CRON_FIELD_NUMBER: _ClassVar[int]
    TIME_ZONE_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_COUNT_FIELD_NUMBER: _ClassVar[int]
    schedule_id: str
    cron: str
    time_zone: str
    active: bool
    delivered_count: int
    def __init__(self, schedule_id: _Optional[str] = ..., cron: _Optional[str] = ..., time_zone: _Optional[str] = ..., active: _Optional[bool] = ..., delivered_count: _Optional[int] = ...) -> None: ...
