# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's GroupQueryAttention on the CPU: contiguous, past and present one buffer."""

import numpy as np

import cases

try:
    import onnx
    import onnxruntime
except ImportError as error:
    raise cases.Missing(f"ONNX Runtime: {error}; scripts/peers installs it") from error

NAME = "onnxruntime"
NOTE = ("GroupQueryAttention, contiguous K and V, past and present in one buffer; int8 has one "
        "scale for the whole tensor")
HAS = {"f32": (np.float32, np.float32), "f16": (np.float16, np.float16),
       "int8": (np.float32, np.int8)}  # queries, cache
SCALE = np.float32(1 / 127)  # of int8: the numbers lie in (-1, 1)


class Peer:
    def version(self):
        return onnxruntime.__version__

    def open(self, case):
        if case.dtype not in HAS:
            raise cases.Impossible(f"its GroupQueryAttention has no {case.dtype} on the CPU")
        return Cache(case)


def model_of(case):
    """A model of one node."""
    tensor, element = onnx.helper.make_tensor_value_info, onnx.TensorProto
    query, cache = ({np.float32: element.FLOAT, np.float16: element.FLOAT16,
                     np.int8: element.INT8}[x] for x in HAS[case.dtype])
    width, kv_width = case.q_heads * cases.HEAD_DIM, case.kv_heads * cases.HEAD_DIM
    cached = ["sequences", case.kv_heads, "capacity", cases.HEAD_DIM]
    inputs = [tensor("query", query, ["sequences", "queries", width]),
              tensor("key", query, ["sequences", "queries", kv_width]),
              tensor("value", query, ["sequences", "queries", kv_width]),
              tensor("past_key", cache, cached), tensor("past_value", cache, cached),
              tensor("last", element.INT32, ["sequences"]), tensor("total", element.INT32, [])]
    names = [x.name for x in inputs]
    outputs = [tensor("out", query, ["sequences", "queries", width]),
               tensor("present_key", cache, cached), tensor("present_value", cache, cached)]
    attributes = {"num_heads": case.q_heads, "kv_num_heads": case.kv_heads}
    if case.dtype == "int8":
        attributes |= {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR",
                       "kv_cache_bit_width": 8}
        names += [""] * 5 + ["k_scale", "v_scale"]
        inputs += [tensor(name, element.FLOAT, [1]) for name in names[-2:]]
    node = onnx.helper.make_node("GroupQueryAttention", names, [x.name for x in outputs],
                                 domain="com.microsoft", **attributes)
    graph = onnx.helper.make_graph([node], "attention", inputs, outputs)
    versions = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=versions)
    model.ir_version = 8
    return model.SerializeToString()


class Cache:
    def __init__(self, case):
        self.case = case
        self.query_type, cache_type = HAS[case.dtype]
        shape = (case.sequences, case.kv_heads, case.kv_len, cases.HEAD_DIM)
        self.k, self.v = (cases.huge_array(shape, cache_type) for _ in range(2))
        for sequence in range(case.sequences):
            for target, values in zip((self.k, self.v), case.tokens(sequence)):
                values = values[:case.past].transpose(1, 0, 2)
                if case.dtype == "int8":
                    values = np.clip(np.rint(values / SCALE), -127, 127)
                target[sequence, :, :case.past] = values
        if case.dtype != "int8":  # no numbers until a step writes them
            self.k[:, :, case.past:] = self.v[:, :, case.past:] = np.nan
        rows = (case.sequences, case.queries, -1)
        k, v = case.new_tokens()
        self.output = np.empty((case.sequences, case.queries, case.q_heads * cases.HEAD_DIM),
                               self.query_type)
        self.inputs = {
            "query": self.of_query_type(case.query_rows(), rows),
            "key": self.of_query_type(k, rows), "value": self.of_query_type(v, rows),
            "past_key": self.k, "past_value": self.v,
            "last": np.full(case.sequences, case.kv_len - 1, np.int32),
            "total": np.array(case.kv_len, np.int32)}
        if case.dtype == "int8":
            self.inputs |= {name: np.array([SCALE]) for name in ("k_scale", "v_scale")}
        self.outputs = {"out": self.output, "present_key": self.k, "present_value": self.v}
        self.model = model_of(case)
        self.sessions = []

    def of_query_type(self, values, shape):
        return np.ascontiguousarray(values.reshape(shape), self.query_type)

    def note(self):
        return f"{self.query_type.__name__} queries"

    def prepare(self, threads):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Its idle threads would take the cores of what is timed next.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            session = onnxruntime.InferenceSession(self.model, options,
                                                   providers=["CPUExecutionProvider"])
        except Exception as error:  # its own classes
            raise cases.Impossible(str(error).splitlines()[0]) from error
        binding = session.io_binding()
        for bind, arrays in ((binding.bind_input, self.inputs),
                             (binding.bind_output, self.outputs)):
            for name, array in arrays.items():
                bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        self.sessions.append((session, binding))
        return lambda: session.run_with_iobinding(binding)

    def out(self):
        return self.output

    def poison(self):
        self.output.fill(np.nan)

    def close(self):
        self.sessions.clear()
