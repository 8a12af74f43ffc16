"""libnghttp2 by cffi's ABI mode: what is used of it is declared here, and nothing is compiled.

A frame is declared by its head, which all kinds of frames begin with.
"""

from __future__ import annotations

import ctypes.util
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

DECLARED: Final = """
typedef struct { size_t length; int32_t stream_id; uint8_t type; uint8_t flags; uint8_t reserved; } frame_hd;
typedef struct { uint8_t *name; uint8_t *value; size_t namelen; size_t valuelen; uint8_t flags; } nv;
typedef struct { int32_t settings_id; uint32_t value; } settings_entry;
typedef union { int fd; void *ptr; } data_source;
typedef ssize_t (*read_callback)(void *session, int32_t stream_id, uint8_t *buf, size_t length,
                                 uint32_t *data_flags, data_source *source, void *user_data);
typedef struct { data_source source; read_callback callback; } data_provider;

typedef int (*on_header)(void *, const frame_hd *, const uint8_t *name, size_t namelen,
                         const uint8_t *value, size_t valuelen, uint8_t flags, void *user_data);
typedef int (*on_frame)(void *, const frame_hd *, void *user_data);
typedef int (*on_chunk)(void *, uint8_t flags, int32_t stream_id, const uint8_t *data, size_t len, void *);
typedef int (*on_close)(void *, int32_t stream_id, uint32_t error_code, void *user_data);

int nghttp2_session_callbacks_new(void **callbacks);
void nghttp2_session_callbacks_set_on_header_callback(void *, on_header);
void nghttp2_session_callbacks_set_on_begin_headers_callback(void *, on_frame);
void nghttp2_session_callbacks_set_on_frame_recv_callback(void *, on_frame);
void nghttp2_session_callbacks_set_on_data_chunk_recv_callback(void *, on_chunk);
void nghttp2_session_callbacks_set_on_stream_close_callback(void *, on_close);
int nghttp2_session_server_new(void **session, void *callbacks, void *user_data);
void nghttp2_session_del(void *session);
ssize_t nghttp2_session_mem_recv(void *session, const uint8_t *in, size_t inlen);
ssize_t nghttp2_session_mem_send(void *session, const uint8_t **data);
int nghttp2_session_want_read(void *session);
int nghttp2_session_want_write(void *session);
int nghttp2_submit_settings(void *session, uint8_t flags, const settings_entry *iv, size_t niv);
int nghttp2_session_set_local_window_size(void *session, uint8_t flags, int32_t stream_id, int32_t size);
int nghttp2_submit_response(void *session, int32_t stream_id, const nv *nva, size_t nvlen,
                            const data_provider *provider);
int nghttp2_submit_headers(void *session, uint8_t flags, int32_t stream_id, const void *pri_spec,
                           const nv *nva, size_t nvlen, void *stream_user_data);
int nghttp2_submit_trailer(void *session, int32_t stream_id, const nv *nva, size_t nvlen);
int nghttp2_submit_rst_stream(void *session, uint8_t flags, int32_t stream_id, uint32_t error_code);
int nghttp2_session_resume_data(void *session, int32_t stream_id);
int nghttp2_submit_shutdown_notice(void *session);
int nghttp2_session_terminate_session(void *session, uint32_t error_code);
"""
UNCOPIED: Final = 2 | 4
CALLBACK_FAILURE: Final = -902


def library() -> str | None:
    """Return the name of the shared library; None where it is not installed."""
    return ctypes.util.find_library("nghttp2")


class Nghttp2:
    """What all connections share: the library, the callbacks, the headers of every answer.

    `connection` has a method for each callback.
    """

    def __init__(self, connection: type[Any]) -> None:
        import cffi

        self.ffi = ffi = cffi.FFI()
        ffi.cdef(DECLARED)
        self.lib = ffi.dlopen(library())
        self._kept_alive: list[Any] = []
        self.current: Any = None
        self.callbacks = self._callbacks(connection)
        self.began = self.headers((b":status", b"200"), (b"content-type", b"application/grpc"))
        self.went_well = self.headers((b"grpc-status", b"0"))
        self.provider = ffi.new("data_provider *")
        self.provider.callback = self._kept("read_callback", connection.take)

    def headers(self, *pairs: tuple[bytes, bytes]) -> Any:
        """Return headers as nghttp2 takes them; they last as long as this does."""
        block = self.ffi.new("nv[]", len(pairs))
        for one, (name, value) in zip(block, pairs, strict=True):
            texts = self.ffi.new("uint8_t[]", name), self.ffi.new("uint8_t[]", value)
            self._kept_alive.append(texts)
            (one.name, one.value), one.namelen, one.valuelen = texts, len(name), len(value)
            one.flags = UNCOPIED
        self._kept_alive.append(block)
        return block

    def failure(self, status: int, why: str) -> tuple[Any, Any]:
        """Return the trailers of a call that ends so, and what must live until they are submitted."""
        pairs = [(b"grpc-status", b"%d" % status), (b"grpc-message", quote(why).encode())]
        block = self.ffi.new("nv[]", len(pairs))
        texts = [(self.ffi.new("uint8_t[]", name), self.ffi.new("uint8_t[]", value)) for name, value in pairs]
        for one, (name, value), sizes in zip(block, texts, pairs, strict=True):
            one.name, one.value, one.namelen, one.valuelen = name, value, len(sizes[0]), len(sizes[1])
        return block, texts

    def _callbacks(self, connection: type[Any]) -> Any:
        made = self.ffi.new("void **")
        self.lib.nghttp2_session_callbacks_new(made)
        callbacks = made[0]
        for kind, name, called in (
            ("on_header", "on_header", connection.on_header),
            ("on_frame", "on_begin_headers", connection.on_begin_headers),
            ("on_frame", "on_frame_recv", connection.on_frame),
            ("on_chunk", "on_data_chunk_recv", connection.on_chunk),
            ("on_close", "on_stream_close", connection.on_close),
        ):
            set_callback = getattr(self.lib, f"nghttp2_session_callbacks_set_{name}_callback")
            set_callback(callbacks, self._kept(kind, called))
        return callbacks

    def _kept(self, kind: str, method: Callable[..., int]) -> Any:
        """A callback for the connection that has just called nghttp2: nothing else calls callbacks."""

        def called(*arguments: Any) -> int:
            return method(self.current, *arguments)

        made = self.ffi.callback(kind, called, error=CALLBACK_FAILURE)
        self._kept_alive.append(made)
        return made
