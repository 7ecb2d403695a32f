# SPDX-License-Identifier: Apache-2.0
"""DLPack by hand: tensors of a device that is none, over arrays of NumPy, and a consumer that counts.

The driver of kvfolio_cuda's twin (tests/python_cuda) takes memory of the host for that of a device if it is told to
(twin.adopt), so an array of NumPy can play a tensor on a card.
"""

import ctypes

import numpy as np

CPU, CUDA = 1, 2
INT, UINT, FLOAT, BFLOAT, E4M3FN = 0, 1, 2, 4, 10
READ_ONLY, COPIED = 1, 2


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32), ("dtype", Type),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class VersionedManaged(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", DELETER), ("flags", ctypes.c_uint64), ("tensor", Tensor)]


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
NAMES = {name: ctypes.create_string_buffer(name) for name in
         (b"dltensor", b"dltensor_versioned", b"used_dltensor", b"used_dltensor_versioned")}

_live = {}  # what capsules point to, by address


class Fake:
    """An array as a tensor of a device, which counts what happens to it. `code` is DLPack's type; with `old` it is
    of before DLPack 1.0."""

    def __init__(self, twin, array, *, device=0, code=None, flags=0, version=(1, 1), old=False, place=None):
        self.twin, self.array, self.device, self.flags, self.version = twin, array, device, flags, version
        self.old, self.place = old, (CUDA, device) if place is None else place
        self.code = code if code is not None else {"i": INT, "u": UINT, "f": FLOAT}[array.dtype.kind]
        self.streams, self.versions, self.handed, self.deleted = [], [], 0, 0
        low, high = np.lib.array_utils.byte_bounds(array) if hasattr(np.lib, "array_utils") else np.byte_bounds(array)
        self.low = low
        if self.place[0] == CUDA:
            twin.adopt(low, max(1, high - low), device)

    def __del__(self):
        if self.place[0] == CUDA:
            self.twin.disown(self.low)

    def __dlpack_device__(self):
        return self.place

    def __getattribute__(self, name):
        if name == "__dlpack__" and object.__getattribute__(self, "old"):
            return object.__getattribute__(self, "dlpack_of_old")
        return object.__getattribute__(self, name)

    def dlpack_of_old(self, stream=None):
        return self._capsule(stream, False)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.versions.append(max_version)
        return self._capsule(stream, max_version is not None)

    def _capsule(self, stream, versioned):
        self.streams.append(stream)
        array = self.array
        shape = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
        strides = (ctypes.c_int64 * max(1, array.ndim))(*(each // array.itemsize for each in array.strides))
        managed = VersionedManaged() if versioned else Managed()
        if versioned:
            managed.major, managed.minor = self.version
            managed.flags = self.flags
        # The address is in two parts, so that the offset is not forgotten.
        offset = array.itemsize if array.size else 0
        managed.tensor = Tensor(array.ctypes.data - offset if array.size else 0, Device(*self.place), array.ndim,
                                Type(self.code, 8 * array.itemsize, 1), shape, strides, offset)
        address = ctypes.addressof(managed)

        def delete(which):
            assert which == address
            self.deleted += 1
            del _live[address]

        managed.deleter = DELETER(delete)
        _live[address] = managed, shape, strides, managed.deleter, self, delete
        self.handed += 1
        return _new(address, NAMES[b"dltensor_versioned" if versioned else b"dltensor"], None)


class Consumed:
    """What a consumer has of an object with __dlpack__, until release()."""

    def __init__(self, capsule):
        name = _name(capsule)
        kind = {b"dltensor": Managed, b"dltensor_versioned": VersionedManaged}[name]
        self.name = name.decode()
        self.managed = kind.from_address(_pointer(capsule, name))
        _rename(capsule, NAMES[b"used_" + name])
        tensor = self.managed.tensor
        self.device = tensor.device.type, tensor.device.id
        self.dtype = tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes
        self.shape = tuple(tensor.shape[: tensor.ndim])
        self.strides = tuple(tensor.strides[: tensor.ndim])
        self.data = (tensor.data or 0) + tensor.byte_offset

    def array(self):
        """Its bytes where they lie: the twin's device memory is memory of the host."""
        item = self.dtype[1] // 8
        last = sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides))
        flat = np.frombuffer((ctypes.c_uint8 * ((last + 1) * item)).from_address(self.data), f"u{item}")
        return np.lib.stride_tricks.as_strided(flat, self.shape, [each * item for each in self.strides])

    def release(self):
        self.managed.deleter(ctypes.addressof(self.managed))


def consume(thing, **options):
    return Consumed(thing.__dlpack__(**options))


def bits(thing):
    """A copy of the elements of a tensor, as unsigned ints; None of None."""
    if thing is None:
        return None
    held = consume(thing, stream=-1)
    copy = held.array().copy()
    held.release()
    return copy
