# SPDX-License-Identifier: Apache-2.0
"""The contract of the command line: keys, exit codes, and messages for what is wrong."""

import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess

import numpy as np
import pytest
from engine import ABSENT, COMMAND, KERNELS, checkpoint, generate, prompts, run

import signals  # engine put its folder on the path

SUMMARY_KEYS = """requests samples generated_tokens tokens_per_s kernel format blocks_total
    blocks_peak prompt_tokens prefill_tokens_computed tokens_reused tokens_recomputed block_copies
    evictions preemptions contiguous_bytes paged_bytes_peak""".split()
SAMPLE_KEYS = """id sample token_ids text finish_reason prompt_tokens cached_tokens
    preemptions""".split()


def bad(done, *words):
    """Exit 2 with one sentence that has these words; nothing on standard output."""
    message = done.stderr.decode()
    assert done.returncode == 2, (done.returncode, message)
    for word in words:
        assert str(word) in message, message
    return message


def test_json_has_the_keys():
    result = generate(checkpoint("tied-f32"), [{"id": "r", "prompt_ids": [1, 2, 3]}])
    assert set(SUMMARY_KEYS) <= set(result.summary)
    assert list(result.samples[0]) == SAMPLE_KEYS
    assert result.summary["kernel"] in KERNELS
    assert len(result.samples[0]["token_ids"]) == 48


@pytest.mark.parametrize(("kernel", "block_size", "format"), [
    ("reference", 16, "hnd"), (None, 16, "granule"), (None, 24, "hnd"), (None, 48, "granule"),
])
def test_auto_is_granule_where_a_fast_kernel_and_the_block_size_allow_it(
        kernel, block_size, format):
    options = ["--block-size", block_size] + (["--kernel", kernel] if kernel else [])
    summary = generate(checkpoint("tied-f32"), [{"id": "r", "prompt_ids": [1, 2, 3]}],
                       *options).summary
    assert summary["format"] == format
    assert (summary["kernel"] == "reference") == (kernel == "reference")


def test_the_variable_names_a_kernel_and_a_wrong_one_is_refused():
    prompt = ["generate", "--model", str(checkpoint("tied-f32")), "--prompt-ids", "1,2", "--json"]
    portable = KERNELS[1]
    for name, code in (("reference", 0), (portable, 0), ("fast", 2), (ABSENT, 2)):
        done = subprocess.run([COMMAND, *prompt], capture_output=True, text=True, timeout=60,
                              check=False, env={**os.environ, "KVFOLIO_KERNEL": name})
        assert done.returncode == code, done.stderr
        if code == 0:
            assert f'"kernel":"{name}"' in done.stdout
        else:
            assert name in done.stderr and "reference" in done.stderr


def test_json_prints_json_only():
    done = run(checkpoint("tied-f32"), "--prompt", "x", "--max-new-tokens", 30, "--json")
    for line in done.stdout.decode().splitlines():
        json.loads(line)
    assert done.stderr == b""


def test_text_is_the_bytes_of_the_tokens():
    result = generate(checkpoint("tied-f32"), [{"id": "r", "prompt_ids": [1, 2, 3]}])
    sample = result.samples[0]
    ascii_only = [t for t in sample["token_ids"] if t < 128]
    kept = [ord(c) for c in sample["text"] if ord(c) < 128]
    assert kept == ascii_only


def test_words_are_null_where_tokens_are_not_bytes():
    model = checkpoint("head-dim")
    result = generate(model, [{"id": "r", "prompt_ids": [1, 2, 3], "max_new_tokens": 3}])
    assert result.samples[0]["text"] is None
    bad(run(model, "--prompt", "x"), "--prompt", "97 tokens", "token ids")
    ids = run(model, "--prompt-ids", "1,2,3", "--max-new-tokens", 3)
    assert ids.returncode == 0
    assert " ".join(map(str, result.samples[0]["token_ids"])) in ids.stdout.decode()


def test_command_line_values_are_the_defaults_of_missing_fields():
    requests = [{"id": "a", "prompt_ids": [1], "max_new_tokens": 2}, {"id": "b", "prompt_ids": [1]}]
    result = generate(checkpoint("tied-f32"), requests, "--max-new-tokens", 5, "--samples", 2)
    assert {key: len(tokens) for key, tokens in result.tokens.items()} == {
        ("a", 0): 2, ("a", 1): 2, ("b", 0): 5, ("b", 1): 5}


def test_end_of_sequence_ids_of_the_checkpoint_stop():
    model = checkpoint("untied-bf16")  # it names none
    [prompt] = prompts(1, shared=0, own=10)
    request = {"id": "a", "prompt_ids": prompt, "max_new_tokens": 20}
    tokens = generate(model, [request]).tokens["a", 0]
    stopping = pathlib.Path(str(model) + "-eos")
    shutil.copytree(model, stopping, dirs_exist_ok=True)
    config = json.loads((stopping / "config.json").read_text())
    (stopping / "config.json").write_text(json.dumps(config | {"eos_token_id": [tokens[7], 3]}))
    sample = generate(stopping, [request]).samples[0]
    assert sample["finish_reason"] == "stop"
    assert sample["token_ids"] == tokens[: tokens.index(tokens[7]) + 1]


def test_a_request_that_never_fits_gets_its_line_and_the_others_go_on():
    [long, short] = prompts(1, 0, 100) + prompts(1, 0, 10)
    requests = [{"id": "long", "prompt_ids": long, "max_new_tokens": 20},
                {"id": "short", "prompt_ids": short, "max_new_tokens": 5},
                {"id": "longer", "prompt_ids": long * 5, "max_new_tokens": 20}]
    result = generate(checkpoint("tied-f32"), requests, "--num-blocks", 4, code=1)
    assert re.search(r"needs 8 blocks .* the pool has 4", result.errors["long"])
    assert "max_position_embeddings 512" in result.errors["longer"]
    assert list(result.tokens) == [("short", 0)]
    assert result.summary["rejected"] == 2
    assert "2 of 3 requests did not fit" in result.stderr


def test_the_smallest_pool_is_what_the_inputs_need():
    # 10 + 7 tokens, of which the last is never an input: 16 slots.
    request = {"id": "a", "prompt_ids": list(range(10)), "max_new_tokens": 7}
    assert generate(checkpoint("tied-f32"), [request], "--num-blocks", 1).samples
    more = request | {"max_new_tokens": 8}
    assert generate(checkpoint("tied-f32"), [more], "--num-blocks", 1, code=1).errors


def test_default_pool_is_what_the_longest_needs_times_max_seqs():
    request = {"id": "a", "prompt_ids": list(range(30)), "max_new_tokens": 10}
    summary = generate(checkpoint("tied-f32"), [request], "--max-seqs", 5).summary
    assert summary["blocks_total"] == 3 * 5
    per_block = summary["paged_bytes_peak"] // summary["blocks_peak"]
    summary = generate(checkpoint("tied-f32"), [request], "--memory", "1MiB").summary
    assert summary["blocks_total"] == (1 << 20) // per_block


@pytest.mark.parametrize("dtype,format", [("int8", "hnd"), ("int8", "nhd"), ("int8", "granule"), ("e4m3", "hnd"),
                                          ("e4m3", "nhd")])
def test_int8_and_e4m3_take_a_quarter_and_their_scales(dtype, format):
    request = {"id": "a", "prompt_ids": list(range(30)), "max_new_tokens": 10}
    options = "--format", format, "--block-size", 16
    f32, quarter = (generate(checkpoint("llama3"), [request], *options, "--cache-dtype", kind).summary
                    for kind in ("f32", dtype))
    assert (quarter["format"], quarter["cache_dtype"]) == (format, dtype)
    config = json.loads((checkpoint("llama3") / "config.json").read_text())
    rows = 2 * config["num_hidden_layers"] * config["num_key_value_heads"]  # of K and V, a token's
    # Four bytes of an element become one, and every row has a scale of four bytes.
    assert f32["contiguous_bytes"] % (40 * rows * 4) == 0
    head_dim = f32["contiguous_bytes"] // (40 * rows * 4)
    assert quarter["contiguous_bytes"] == 40 * rows * (head_dim + 4)
    assert quarter["paged_bytes_peak"] == 48 * rows * (head_dim + 4)


@pytest.mark.parametrize("options,words", [
    (["--threads", "0"], ["--threads", '"0"', "1 to 256"]),
    (["--block-size", "1025"], ["--block-size", "1025", "1 to 1024"]),
    (["--num-blocks", "99999999999"], ["--num-blocks", "2147483647"]),
    (["--num-blocks", "2147483647"], ["num_blocks 2147483647", "allowed"]),
    (["--memory", "1TiB"], ["memory"]),
    (["--memory", "100TiB"], ["--memory", "allowed: at most"]),
    (["--memory", "12GB"], ["--memory", "12GB", "24GiB"]),
    (["--memory", "100"], ["--memory", "100", "at least"]),
    (["--memory", "9223372036854775807TiB"], ["--memory"]),
    (["--num-blocks", "1", "--memory", "1GiB"], ["--num-blocks", "--memory"]),
    (["--temperature", "nan"], ["--temperature", "nan"]),
    (["--top-p", "1.5"], ["--top-p", "1.5", "at most 1"]),
    (["--seed", "-1"], ["--seed", "-1"]),
    (["--kernel", "fast"], ["--kernel", "fast", "reference", "avx512-bf16"]),
    (["--kernel", ABSENT], ["--kernel", ABSENT, "allowed on this machine: reference"]),
    (["--device", "gpu"], ["--device", '"gpu"', "cpu, cuda, cuda:N"]),
    (["--device", "cuda:-1"], ["--device", "cuda:-1", "cpu, cuda, cuda:N"]),
    (["--device", "cuda:99999999999"], ["--device", "cpu, cuda, cuda:N"]),
    (["--device", "cuda", "--kernel", "reference"], ["--kernel: reference", "with --device cuda: auto"]),
    (["--format", "hdn"], ["--format", "hdn", "auto, granule, hnd, nhd"]),
    (["--format", "granule", "--block-size", "24"], ["block_size is 24", "multiples of 16"]),
    (["--format", "granule", "--cache-dtype", "f64"], ["dtype is f64", "f32, f16, bf16, int8"]),
    (["--format", "granule", "--cache-dtype", "e4m3"], ["dtype is e4m3", "f32, f16, bf16, int8"]),
    (["--cache-dtype", "int4"], ["--cache-dtype", "int4", "int8", "e4m3"]),
    (["--draft", "ngram:2"], ["--draft"]),
    (["--beams", "2", "--samples", "2"], ["beams", "samples"]),
    (["--beams", "2", "--temperature", "1"], ["temperature", "beams"]),
    (["--beams", "2", "--logits", "/tmp/never.npy"], ["--logits", "beam"]),
    (["--logits", "/nowhere/out.npy"], ["--logits", "/nowhere/out.npy"]),
    (["--perplexity", "/nowhere/text"], ["--perplexity", "/nowhere/text"]),
    (["--verify", "--contiguous"], ["--verify", "--contiguous"]),
    (["--prompt-ids", "1"], ["--prompt", "--prompt-ids"]),
])
def test_wrong_options_are_named(options, words):
    bad(run(checkpoint("tied-f32"), "--prompt", "x", "--max-new-tokens", 1, *options), *words)


@pytest.mark.parametrize("verb", ["generate", "prove"])
def test_a_device_that_is_not_there_is_exit_code_3(verb):
    request = ["--prompt", "x"] if verb == "generate" else []
    done = subprocess.run([COMMAND, verb, "--model", checkpoint("tied-f32"), *request, "--device", "cuda:63"],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done
    assert done.stdout == ""
    assert done.stderr.startswith(f"kvfolio {verb}: --device: ") and done.stderr.count("\n") == 1, done.stderr


def test_the_cpu_is_a_device_and_the_default():
    for kernel in ([], ["--kernel", "reference"]):
        shown = [run(checkpoint("tied-f32"), "--prompt", "x", "--max-new-tokens", 3, *kernel, *device)
                 for device in ([], ["--device", "cpu"])]
        assert [done.returncode for done in shown] == [0, 0]
        assert shown[0].stdout.split(b"\n\n")[0] == shown[1].stdout.split(b"\n\n")[0] != b""


def test_wrong_prompt_ids_are_named():
    bad(run(checkpoint("tied-f32"), "--prompt-ids", "1,2,256"), "--prompt-ids", "256", "0 to 255")
    bad(run(checkpoint("tied-f32"), "--prompt-ids", "1;2"), "1;2")
    for slip in ("1,,2", "1,2,", ",1", "1 2", "1, 2"):
        bad(run(checkpoint("tied-f32"), "--prompt-ids", slip), "--prompt-ids", "token")
    bad(run(checkpoint("tied-f32"), "--prompt-ids", ""), "empty")
    bad(run(checkpoint("tied-f32")), "--requests", "--prompt")


@pytest.mark.parametrize("arguments, words", {
    ("generat",): ["'generat' is no verb (did you mean generate?), allowed: generate"],
    ("--verison",): ["did you mean --version?"],
    ("generate", "--modle=x"): ["generate: unknown: --modle=x (did you mean --model?)"],
    ("generate", "--model", "x", "--max-new-token", "3"): ["unknown: --max-new-token (did you mean --max-new-tokens?) 3"],
    ("tier", "chek", "disk:x"): ["tier: unknown: chek (did you mean check?)"],
    ("tier", "check", "disk:x", "--erse"): ["did you mean --erase?"],
}.items())
def test_a_mistyped_word_is_answered_with_the_nearest(arguments, words):
    bad(subprocess.run([COMMAND, *arguments], capture_output=True, timeout=120), *words)


@pytest.mark.parametrize("arguments", [("xyz",), ("generate", "--zzz"), ("generate", "--model", "x", "y" * 100)])
def test_a_word_that_is_near_to_none_gets_no_guess(arguments):
    message = bad(subprocess.run([COMMAND, *arguments], capture_output=True, timeout=120), arguments[-1])
    assert "did you mean" not in message


MEMORY = 300 << 20
HOSTILE = {
    "not json": ("nonsense", ["line 1"]),
    "cut": ('{"prompt":"x"', ["line 1"]),
    "second line": ('{"prompt":"x"}\n{"prompt":7}', ["line 2", "prompt", "7"]),
    "nan": ('{"prompt":"x","temperature":NaN}', ["line 1"]),
    "huge number": ('{"prompt":"x","seed":1e400}', ["line 1"]),
    "id out of range": ('{"prompt_ids":[1,300]}', ["prompt_ids[1]", "300", "0 to 255"]),
    "id twice": ('{"id":"a","prompt":"x"}\n{"id":"a","prompt":"y"}', ["line 2", '"a"']),
    "key twice": ('{"id":"a","id":"b","prompt":"x"}', ["line 1", "id"]),
    "unknown field": ('{"prompt":"x","max_token":3}', ["max_token", "max_new_tokens"]),
    "wrong type": ('{"prompt":"x","samples":"4"}', ["samples"]),
    "negative": ('{"prompt":"x","max_new_tokens":-4}', ["max_new_tokens", "-4"]),
    "deep": ("[" * 5_000_000, ["line 1"]),
    "deep object": ('{"prompt":' * 100_000, ["line 1"]),
    "long line": ("x" * 20_000_000, ["line 1", "longer"]),
    "many ids": ('{"prompt_ids":[' + "1," * 3_000_000 + "1]}", ["line 1"]),
    "many beams": ('{"prompt":"x","beams":200}\n' * 6000, ["samples"]),
    "many requests": ('{"prompt":"x","samples":1024}\n' * 1000, ["samples"]),
    "zero bytes": (b"\0" * 1000, ["line 1"]),
    "empty": ("", ["no request"]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_requests_are_refused(name):
    text, words = HOSTILE[name]
    bad(run(checkpoint("tied-f32"), requests=text, timeout=120, memory_bytes=MEMORY), *words)


def test_missing_files_are_named(tmp_path):
    bad(run(tmp_path / "none", "--prompt", "x"), "none")
    bad(run(checkpoint("tied-f32"), "--requests", tmp_path / "none"), "--requests", "none", "No such")
    bad(run(checkpoint("tied-f32"), "--requests", tmp_path), "--requests", tmp_path, "folder")


def test_an_error_of_reading_standard_input_is_not_its_end(tmp_path):
    command = [COMMAND, "generate", "--model", str(checkpoint("tied-f32")), "--requests", "-"]
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        bad(subprocess.run(command, stdin=folder, capture_output=True, timeout=60, check=False),
            "standard input", "directory")
    finally:
        os.close(folder)
    reader, writer = os.pipe()
    try:
        os.set_blocking(reader, False)
        os.write(writer, b'{"prompt":"a"}\n')  # and more would come
        bad(subprocess.run(command, stdin=reader, capture_output=True, timeout=60, check=False),
            "standard input", "temporarily unavailable")
    finally:
        os.close(reader)
        os.close(writer)


def test_memory_is_for_the_work_and_not_for_what_the_model_could_hold(tmp_path):
    model = checkpoint("tied-f32", max_positions=1 << 30)
    text = tmp_path / "text"
    text.write_text("in the beginning")
    for options in (["--prompt", "x", "--max-new-tokens", 1], ["--perplexity", text]):
        done = run(model, *options, memory_bytes=MEMORY)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("requests", "new_tokens", "block_size"), [
    (16, 256, 256), (128, 48, 16),  # a promise to each of a block for each of the others
    (64, 300, 256),                 # more than there is room for at once: some wait
])
def test_many_short_prompts_find_room_for_their_tables(requests, new_tokens, block_size):
    result = generate(checkpoint("tied-f32"),
                      [{"id": str(i), "prompt_ids": [1 + i % 250]} for i in range(requests)],
                      "--max-seqs", requests, "--max-new-tokens", new_tokens,
                      "--block-size", block_size)
    assert len(result.samples) == requests
    assert {len(sample["token_ids"]) for sample in result.samples} <= set(range(1, new_tokens + 1))


def test_hostile_checkpoints_are_refused(tmp_path):
    good = (checkpoint("tied-f32") / "model.safetensors").read_bytes()
    size = 8 + struct.unpack("<Q", good[:8])[0]
    cases = {
        "cut header": good[: size // 2],
        "cut data": good[:-1],
        "length 2^63": struct.pack("<Q", 1 << 63) + good[8:],
        "nothing": b"",
        "overlap": good.replace(b'"data_offsets":[0,', b'"data_offsets":[4,', 1),
        "nan weights": good[:size] + np.full((len(good) - size) // 4, np.nan, "<f4").tobytes(),
    }
    shutil.copy(checkpoint("tied-f32") / "config.json", tmp_path)
    for name, data in cases.items():
        (tmp_path / "model.safetensors").write_bytes(data)
        done = run(tmp_path, "--prompt", "x", timeout=120, memory_bytes=MEMORY)
        message = bad(done)
        assert len(message) > 20, name


def test_help_and_version():
    for arguments in (["--help"], ["generate", "--help"]):
        done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout.count("\n  kvfolio generate --model") == 2  # two examples
    done = subprocess.run([COMMAND, "--version"], capture_output=True, text=True, check=True)
    for word in ("kvfolio 0", "commit ", "compiler ", "reference"):
        assert word in done.stdout
    for arguments in ([], ["fly"], ["generate"]):
        done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 2


def test_a_word_that_is_not_known_is_named():
    for arguments, words in ((["bogus"], ("'bogus'", "generate, prove, bench")),
                             (["--vers"], ("'--vers'", "option")),
                             (["generate", "--model", "m", "--max-new", "3"], ("--max-new 3",)),
                             (["bench", "core", "--rounds", "x"], ("--rounds", '"x"', "1 to 1000"))):
        done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        for word in words:
            assert word in done.stderr, done.stderr


@pytest.mark.parametrize("arguments, says", [
    ([], "kvfolio: a verb is missing, allowed: generate, prove, bench, tier, inspect\n"),
    (["tier"], "kvfolio: tier: a verb is missing, allowed: check\n"),
])
def test_a_verb_that_is_missing_is_asked_for_with_what_is_allowed(arguments, says):
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith(says)


def test_a_reader_that_goes_away_ends_it_without_a_word():
    command = f"'{COMMAND}' generate --model '{checkpoint('tied-f32')}' --prompt x --json"
    script = f"set -o pipefail; {command} --samples 400 | head -n 1 >/dev/null"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def start(*options, requests=()):
    text = "\n".join(map(json.dumps, requests)).encode()
    return signals.Started([COMMAND, "generate", "--model", checkpoint("tied-f32", 1 << 16), *options], text)


def test_a_reader_that_goes_away_hides_no_failure():
    """The first request does not fit, and its line says so."""
    requests = [{"id": "long", "prompt_ids": [1] * 100}] + [
        {"id": str(i), "prompt_ids": [1], "max_new_tokens": 2} for i in range(1000)]
    out, err, code = start("--json", "--num-blocks", 4, "--requests", "-", requests=requests).leave()
    assert (code, err) == (1, b"") and b'"error"' in out


LONG = ("--prompt", "x", "--max-new-tokens", 60000)  # they stream as text


def test_ctrl_c_ends_a_line_that_was_begun():
    out, err, code = start(*LONG).signal()
    assert (code, err) == (130, b"kvfolio: interrupted\n")
    assert out.startswith(b"== ") and out.endswith(b"\n")


def test_ctrl_c_leaves_whole_json_lines():
    requests = [{"id": str(i), "prompt_ids": [1], "max_new_tokens": 20} for i in range(2000)]
    out, err, code = start("--json", "--requests", "-", requests=requests).signal()
    assert (code, err) == (130, b"kvfolio: interrupted\n") and out.endswith(b"\n")
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines and not any("summary" in line for line in lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_early_end_leaves_no_half_of_a_file_and_what_was_there(tmp_path, number):
    path = tmp_path / "out.npy"
    path.write_bytes(b"of an earlier run")
    run = start(*LONG, "--logits", path)
    assert run.files_in(tmp_path) == 1
    assert run.signal(number)[2] == 128 + number
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b"of an earlier run"


def test_a_run_that_fails_leaves_no_file(tmp_path):
    bad(run(checkpoint("tied-f32"), "--prompt", "x", "--logits", tmp_path / "out.npy",
            "--perplexity", tmp_path / "none"), "--perplexity")
    assert list(tmp_path.iterdir()) == []


def test_logits_may_go_through_a_link_or_to_no_file(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.npy").symlink_to(tmp_path / "folder" / "out.npy")
    (tmp_path / "folder" / "out.npy").write_bytes(b"")
    for path in (tmp_path / "link.npy", "/dev/null"):
        done = run(checkpoint("tied-f32"), "--prompt", "x", "--max-new-tokens", 2, "--logits", path)
        assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "folder" / "out.npy").shape == (2, 256)
    assert (tmp_path / "link.npy").is_symlink() and pathlib.Path("/dev/null").is_char_device()
