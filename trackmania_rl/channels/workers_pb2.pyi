from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Hello(_message.Message):
    __slots__ = ("collector", "digests")
    class DigestsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    COLLECTOR_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    collector: str
    digests: _containers.ScalarMap[str, bytes]
    def __init__(self, collector: _Optional[str] = ..., digests: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class Description(_message.Message):
    __slots__ = ("run", "settings", "facts", "progress", "run_id")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run: str
    settings: str
    facts: _containers.ScalarMap[str, str]
    progress: str
    run_id: str
    def __init__(self, run: _Optional[str] = ..., settings: _Optional[str] = ..., facts: _Optional[_Mapping[str, str]] = ..., progress: _Optional[str] = ..., run_id: _Optional[str] = ...) -> None: ...

class Weights(_message.Message):
    __slots__ = ("kind", "digest", "size", "offset", "piece")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    digest: bytes
    size: int
    offset: int
    piece: bytes
    def __init__(self, kind: _Optional[str] = ..., digest: _Optional[bytes] = ..., size: _Optional[int] = ..., offset: _Optional[int] = ..., piece: _Optional[bytes] = ...) -> None: ...

class News(_message.Message):
    __slots__ = ("description", "frames_total", "received", "taken", "settings", "weights", "is_watched")
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FRAMES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    IS_WATCHED_FIELD_NUMBER: _ClassVar[int]
    description: Description
    frames_total: int
    received: int
    taken: int
    settings: str
    weights: Weights
    is_watched: bool
    def __init__(self, description: _Optional[_Union[Description, _Mapping]] = ..., frames_total: _Optional[int] = ..., received: _Optional[int] = ..., taken: _Optional[int] = ..., settings: _Optional[str] = ..., weights: _Optional[_Union[Weights, _Mapping]] = ..., is_watched: _Optional[bool] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "dtype", "shape", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Race(_message.Message):
    __slots__ = ("facts", "columns")
    FACTS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    facts: str
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    def __init__(self, facts: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ...) -> None: ...

class Upload(_message.Message):
    __slots__ = ("hello", "race", "cars")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    RACE_FIELD_NUMBER: _ClassVar[int]
    CARS_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    race: bytes
    cars: str
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., race: _Optional[bytes] = ..., cars: _Optional[str] = ...) -> None: ...
