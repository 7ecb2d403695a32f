# SPDX-License-Identifier: Apache-2.0
"""Hostile checkpoints, through whole programs: exit code 2, one sentence that names the file, in
seconds and 300 MB, never a signal."""

import json
import os
import pathlib
import resource
import struct
import subprocess
import sys

import numpy as np
import pytest

SOURCE = pathlib.Path(os.environ["KVFOLIO_SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "tests"))
import make_checkpoints  # noqa: E402

PROGRAMS = {
    "model": lambda folder: [os.environ["KVFOLIO_LOGITS_DUMP"], folder, "1,2,3"],
    "command": lambda folder: [os.environ["KVFOLIO"], "generate", "--model", folder,
                               "--prompt-ids", "1,2,3", "--max-new-tokens", "1"],
}
SANITIZED = bool(os.environ["KVFOLIO_SANITIZED"])
MAX_SECONDS = 120 if SANITIZED else 20
MAX_BYTES = 300_000_000


def limit_memory():
    # Private writable memory; what is above throws, and an uncaught throw is a signal. The
    # sanitizers' shadow memory is far larger.
    if not SANITIZED:
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))


@pytest.fixture(params=PROGRAMS)
def run(request):
    """Runs one program on a folder: (exit code, standard error)."""

    def start(folder):
        done = subprocess.run(PROGRAMS[request.param](str(folder)), stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, preexec_fn=limit_memory, check=False,
                              timeout=MAX_SECONDS)
        return done.returncode, done.stderr.decode()

    return start


@pytest.fixture
def folder(tmp_path):
    return make_checkpoints.write_checkpoint(tmp_path / "checkpoint", "head-dim")


def refused(run, folder, file, *words):
    code, errors = run(folder)
    assert code == 2, errors
    sentence = errors.strip()
    assert "\n" not in sentence and file in sentence, sentence
    for word in words:
        assert word in sentence, sentence


def header_of(folder):
    data = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def write(folder, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if length is None else length
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + text + data)


def test_the_folder_itself_is_fine(run, folder):
    assert run(folder)[0] == 0


def test_truncations_are_refused(run, folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    size = struct.unpack("<Q", whole[:8])[0]
    marks = [8 + i for i, byte in enumerate(whole[8 : 8 + size]) if byte in b"{}[],:\""]
    cuts = [0, 1, 7, 8, 9, *marks[::23], 7 + size, 8 + size, 9 + size, len(whole) - 1]
    for cut in cuts:
        path.write_bytes(whole[:cut])
        refused(run, folder, "model.safetensors")


@pytest.mark.parametrize("length", [2**63, 2**63 - 1, 2**64 - 1, 10**8 + 1, 10**15])
def test_header_lengths_beyond_the_file_are_refused(run, folder, length):
    write(folder, b"{}", length=length)
    refused(run, folder, "model.safetensors", f"header length is {length}")


def test_header_over_100_mb_is_refused_even_when_the_file_is_larger(run, folder):
    write(folder, b"{}", length=10**8 + 1)
    os.truncate(folder / "model.safetensors", 2**40)  # sparse
    refused(run, folder, "model.safetensors", "at most 100000000")


LARGE = 10**8
TEN_THOUSAND_KEYS = b",".join(b'"....%04d":1' % i for i in range(10_000))
LARGE_HEADERS = {  # made when needed: each is as large as a header may be
    "deep": lambda: b"[" * LARGE,
    "wide": lambda: b"[" + b"[]," * (LARGE // 3 - 1),
    "long-string": lambda: b'{"a":"' + b"x" * (LARGE - 8) + b'"}',
    "escapes": lambda: b'{"a":"' + b"\\n" * (LARGE // 2 - 4) + b'"}',
    "keys": lambda: b"{" + b",".join(
        TEN_THOUSAND_KEYS.replace(b'"....', b'"%04d' % i) for i in range(LARGE // 130_000)) + b"}",
    "metadata": lambda: b'{"__metadata__":{' +
                        b",".join(b'"%07d":"%0200d"' % (i, i) for i in range(390_000)) + b"}}",
    "blank": lambda: b" " * LARGE,
    "number": lambda: b"1" * LARGE,
}


@pytest.mark.parametrize("kind", LARGE_HEADERS)
def test_headers_of_100_mb_take_neither_time_nor_memory(run, folder, kind):
    write(folder, LARGE_HEADERS[kind]())
    refused(run, folder, "model.safetensors")
    (folder / "model.safetensors").unlink()  # pytest keeps the folder


NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize("field,value,word", [
    ("data_offsets", [8, 0], "reversed"),
    ("data_offsets", [0, 2**63], "data_offsets"),
    ("data_offsets", [0, -1], "data_offsets"),
    ("data_offsets", [0, 1e300], "data_offsets"),
    ("data_offsets", [0, 4], "data_offsets"),
    ("data_offsets", "0,4", "data_offsets"),
    ("shape", [2**32, 2**32], "overflows"),
    ("shape", [2**61, 8], "overflows"),
    ("shape", [-1, 40], "-1"),
    ("shape", ["96", 40], '"96"'),
    ("shape", None, "shape"),
    ("shape", [96] * 1000, "dimensions"),
    ("dtype", "F32X", "F32X"),
    ("dtype", "F64", "data_offsets"),
    ("dtype", 1, "dtype"),
])
def test_wrong_entries_are_refused_by_tensor_and_field(run, folder, field, value, word):
    header, data = header_of(folder)
    header[NAME][field] = value
    write(folder, header, data)
    refused(run, folder, "model.safetensors", NAME, word)


def test_overlapping_tensors_are_refused(run, folder):
    header, data = header_of(folder)
    header[NAME]["data_offsets"] = header["model.layers.0.mlp.up_proj.weight"]["data_offsets"]
    write(folder, header, data)
    refused(run, folder, "model.safetensors", "data_offsets begin at")


def test_missing_and_unknown_tensors_are_refused_by_name(run, folder):
    header, data = header_of(folder)
    header["model.layers.1.mlp.up_proj.bias"] = header.pop(NAME)
    write(folder, header, data)
    refused(run, folder, "model.safetensors", NAME, "missing")


def test_duplicate_tensors_are_refused_by_name(run, folder):
    header, data = header_of(folder)
    text = json.dumps(header)
    write(folder, (text[:-1] + f', "{NAME}": ' + json.dumps(header[NAME]) + "}").encode(), data)
    refused(run, folder, "model.safetensors", NAME, "twice")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_by_tensor(run, folder, value):
    header, data = header_of(folder)
    begin = header[NAME]["data_offsets"][0] + 4 * 17
    data = data[:begin] + struct.pack("<f", value) + data[begin + 4 :]
    write(folder, header, data)
    refused(run, folder, "model.safetensors", NAME, "not finite")


def test_weights_that_overflow_are_refused(run, folder):
    header, data = header_of(folder)
    write(folder, header, (np.frombuffer(data, "<f4") * np.float32(1e37)).tobytes())
    code, errors = run(folder)
    assert code == 2 and "not finite" in errors, errors


@pytest.mark.parametrize("name", ["../other", "/etc/passwd", "..", "", "a/b", "sub\\b", 7, None])
def test_index_that_names_other_folders_is_refused(run, folder, name):
    (folder / "model.safetensors").rename(folder.parent / "other")
    index = {"metadata": {}, "weight_map": {NAME: name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(run, folder, "model.safetensors.index.json", "weight_map", NAME)


BROKEN_CONFIGS = {
    "empty": "",
    "cut": "{",
    "array": "[]",
    "null": "null",
    "deep-arrays": "[" * 100_000,
    "deep-objects": '{"architectures":' * 10_000,
    "two-values": "{}{}",
    "zeros": "\0" * 100,
    "duplicate": '{"hidden_size": 1, "hidden_size": 2}',
    "byte-order-mark": "\ufeff{}",
    "large": " " * 2_000_000,
}


@pytest.mark.parametrize("kind", BROKEN_CONFIGS)
def test_broken_configs_are_refused(run, folder, kind):
    (folder / "config.json").write_text(BROKEN_CONFIGS[kind])
    refused(run, folder, "config.json")


@pytest.mark.parametrize("value", [None, 0, -1, 1.5, "8", [], {}, True, 2**31, 2**63, 1e300])
@pytest.mark.parametrize("field", [
    "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size"])
def test_wrong_sizes_are_refused_by_field(run, folder, field, value):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {field: value}))
    refused(run, folder, "config.json", field)


@pytest.mark.parametrize("field,value", [
    ("vocab_size", 2**24), ("hidden_size", 2**20), ("intermediate_size", 2**20),
    ("num_hidden_layers", 4096), ("num_attention_heads", 4096), ("head_dim", 1024)])
def test_sizes_that_the_tensors_do_not_have_are_refused(run, folder, field, value):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {field: value}))
    refused(run, folder, "model.safetensors", "tensor")


@pytest.mark.parametrize("field,value", [
    ("hidden_act", "gelu"), ("attention_bias", True), ("mlp_bias", True), ("pretraining_tp", 2),
    ("rope_scaling", {"rope_type": "yarn", "factor": 2.0}), ("quantization_config", {"bits": 4}),
    ("architectures", ["Qwen2ForCausalLM"]), ("model_type", "gemma"), ("sliding_window", 16),
    ("eos_token_id", 97), ("eos_token_id", [0, "1"]), ("num_key_value_heads", 3)])
def test_unsupported_fields_are_refused_by_name(run, folder, field, value):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {field: value}))
    refused(run, folder, "config.json", field)


def test_folders_without_files_and_pipes_are_refused(run, folder, tmp_path):
    refused(run, tmp_path / "nowhere", "config.json")
    (folder / "model.safetensors").unlink()
    refused(run, folder, "model.safetensors")
    os.mkfifo(folder / "model.safetensors")
    refused(run, folder, "model.safetensors", "regular file")
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    refused(run, folder, "config.json", "regular file")
