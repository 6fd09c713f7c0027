"""Writes seeds/: small inputs, right ones and nearly right ones, in the layout each target reads.
    .deps/peers/bin/python tests/fuzz/make_seeds.py"""
import gzip
import io
import json
import struct
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import save

root = Path(__file__).resolve().parent
sys.path.insert(0, str(root.parent / "config"))
from wrong_cases import wrong_cases  # noqa: E402
seeds = root / "seeds"


def write(target: str, name: str, content: bytes) -> None:
    (seeds / target).mkdir(parents=True, exist_ok=True)
    (seeds / target / name).write_bytes(content)


def two(first: bytes, second: bytes) -> bytes:
    return struct.pack("<H", len(first)) + first + second


def idx(*shape: int) -> bytes:
    header = bytes([0, 0, 8, len(shape)]) + b"".join(struct.pack(">I", n) for n in shape)
    return header + bytes(range(int(np.prod(shape))))


def npy(array: np.ndarray, version=(1, 0)) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    return file.getvalue()


def encoded(picture: Image.Image, form: str, **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def tar(form: int, members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue().rstrip(b"\0") + b"\0" * 1536  # shorter than tar makes it


def packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


write("idx", "plain", two(idx(3, 2, 2), idx(3)))
write("idx", "gzip", two(packed(idx(3, 2, 2)), packed(idx(3))))
write("idx", "members", two(packed(idx(3, 2, 2)[:9]) + packed(idx(3, 2, 2)[9:]), idx(3)))

target = npy(np.arange(3))
write("npy", "float32", two(npy(np.arange(6, dtype=np.float32).reshape(3, 2)), target))
write("npy", "version2", two(npy(np.arange(3, dtype=np.uint8), (2, 0)), target))
write("npy", "version3", two(npy(np.arange(3.0), (3, 0)), npy(np.arange(3, dtype=np.int32))))
write("npy", "big_endian", two(npy(np.arange(3, dtype=">f4")), target))
write("npy", "structured", two(npy(np.zeros(3, dtype=[("a", "<f4")])), target))
write("npy", "gzip", two(packed(npy(np.arange(3.0))), target))

picture = Image.fromarray((np.indices((19, 23)).sum(0)[..., None] * np.array([5, 3, 1])).astype(np.uint8))
exif = Image.Exif()
exif[0x112] = 6  # orientation
write("picture", "jpeg", encoded(picture, "JPEG", subsampling="4:2:0"))
write("picture", "turned", encoded(picture, "JPEG", exif=exif, subsampling="4:2:2"))
write("picture", "progressive", encoded(picture, "JPEG", progressive=True))
write("picture", "cmyk", encoded(picture.convert("CMYK"), "JPEG"))
write("picture", "png", encoded(picture, "PNG", exif=exif))
write("picture", "palette", encoded(picture.convert("P"), "PNG"))
write("picture", "sixteen_bits", encoded(Image.fromarray(np.arange(12, dtype=np.uint16).reshape(3, 4) * 999), "PNG"))

for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
    write("shards", ("ustar", "gnu", "pax")[form], tar(form, {"a/1.jpg": b"picture", "a/1.cls": b"7", "a/1.json": b"{}",
                                                             "b" * 70 + "/" + "c" * 60 + ".png": b"x",
                                                             "b" * 70 + "/" + "c" * 60 + ".cls": b" 12\n"}))

features = np.arange(6, dtype=np.float32).reshape(3, 2)
write("safetensors", "dataset", save({"features": features, "target": np.arange(3)}, {"made by": "numpy"}))
write("safetensors", "weights", save({"a.weight": features, "b": np.array(1.0), "none": np.zeros((0, 2), np.float16)}))
write("safetensors", "empty", save({}))



def sizes(*numbers: int) -> list:
    return [{"as_int": number} for number in numbers]


def tensor(name: str) -> dict:
    return {"as_tensor": {"name": name}}


def node(target: str, output: dict, **arguments: dict) -> dict:
    return {"target": "torch.ops." + target,
            "inputs": [{"name": name, "arg": value, "kind": 1} for name, value in arguments.items()],
            "outputs": [output], "metadata": {"nn_module_stack": "L__self__,,Net;L__self___fc,fc,Linear"}}


def tensor_meta(*shape: int, kind: int = 7, grad: bool = True) -> dict:
    strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    return {"dtype": kind, "sizes": sizes(*shape), "strides": sizes(*strides), "requires_grad": grad,
            "device": {"type": "cpu", "index": None}, "storage_offset": {"as_int": 0}, "layout": 7}


# y = dropout(linear(x)), a counter that counts, a batch of any size.
leaf = '{"type": null, "context": null, "children_spec": []}'
in_spec = ('[1, {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": "builtins.tuple", '
           '"context": "null", "children_spec": [' + leaf + ']}, '
           '{"type": "builtins.dict", "context": "[]", "children_spec": []}]}]')
x_meta = tensor_meta(4, 3, grad=False)
x_meta["sizes"][0] = {"as_expr": {"expr_str": "Mul(Integer(2), Symbol('s0', positive=True))", "hint": {"as_int": 4}}}
nodes = [node("aten.linear.default", tensor("h"), input=tensor("x"), weight=tensor("w"), bias=tensor("b")),
         node("aten.add_.Tensor", tensor("counted"), self=tensor("n"), other={"as_int": 1}),
         node("aten.dropout.default", tensor("y"), input=tensor("h"), p={"as_float": 0.5}, train={"as_bool": True})]
signature = {
    "input_specs": [{"parameter": {"arg": {"name": "w"}, "parameter_name": "fc.weight"}},
                    {"parameter": {"arg": {"name": "b"}, "parameter_name": "fc.bias"}},
                    {"buffer": {"arg": {"name": "n"}, "buffer_name": "n", "persistent": True}},
                    {"user_input": {"arg": tensor("x")}}],
    "output_specs": [{"user_output": {"arg": tensor("y")}}]}
exported_program = {
    "schema_version": {"major": 8, "minor": 17}, "torch_version": "2.11.0",
    "range_constraints": {"s0": {"min_val": 1, "max_val": 100}}, "guards_code": ["L['x'].size()[0] % 2 == 0"],
    "graph_module": {
        "graph": {"inputs": [tensor(name) for name in "wbnx"], "outputs": [tensor("y")], "nodes": nodes,
                  "tensor_values": {"x": x_meta}},
        "signature": signature,
        "module_call_graph": [{"fqn": "", "signature": {"inputs": [], "outputs": [], "forward_arg_names": ["x"],
                                                       "in_spec": in_spec, "out_spec": f"[1, {leaf}]"}}]}}


def with_region(kind: str, *arguments: dict) -> dict:
    """The first node in a graph of its own."""
    program = json.loads(json.dumps(exported_program))
    graph = {"inputs": [tensor("x"), tensor("w"), tensor("b")], "outputs": [tensor("h")], "nodes": [nodes[0]],
             "tensor_values": {}}
    listed = [*arguments, {"as_graph": {"name": "g", "graph": graph}}, tensor("x"), tensor("w"), tensor("b")]
    program["graph_module"]["graph"]["nodes"][0] = node(
        "higher_order." + kind, {"as_tensors": [{"name": "h"}]}, **{f"a{i}": value for i, value in enumerate(listed)})
    return program


def weight(number: int, meta: dict) -> dict:
    return {"path_name": f"weight_{number}", "is_param": meta["requires_grad"], "use_pickle": False, "tensor_meta": meta}


exported_weights = {"config": {"fc.weight": weight(0, tensor_meta(2, 3)), "fc.bias": weight(1, tensor_meta(2)),
                               "n": weight(2, tensor_meta(kind=5, grad=False))}}


def compact(value: dict) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def exported_archive(program: dict, weights: dict) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in {"version": b"3\n", "archive_format": b"pt2", "models/model.json": compact(program),
                              "data/weights/model_weights_config.json": compact(weights),
                              **{f"data/weights/weight_{i}": bytes(24) for i in range(3)}}.items():
            archive.writestr(zipfile.ZipInfo("m/" + name), content)
    return file.getvalue()


write("exported", "program", b"\1" + two(compact(exported_program), compact(exported_weights)))
write("exported", "no_grad", b"\1" + two(compact(with_region("wrap_with_set_grad_enabled", {"as_bool": False})),
                                         compact(exported_weights)))
small = {**exported_program, "guards_code": [], "range_constraints": {}}
small_graph = {**small["graph_module"]["graph"], "nodes": nodes[:1], "outputs": [tensor("h")]}
small["graph_module"] = {**small["graph_module"], "graph": small_graph,
                         "signature": {**signature, "output_specs": [{"user_output": {"arg": tensor("h")}}]}}
write("exported", "archive", b"\0" + exported_archive(small, exported_weights))

# Without its last line: the target adds the checksum.
about = b'''{"step":3,"epoch":0,"world_size":2,"reason":"period","metric":"loss","metric_value":%s,"smaller_is_better":true,
"time":1.7e9,"run":{"name":"x"}}'''
manifest = b'''{"format":"dtrain checkpoint","version":1,
"about":%s,
"checksum":"crc32c","piece_bytes":4194304,
"files":[
{"name":"model.safetensors","bytes":4194305,"checksums":["00000000","0123abcd"]},
{"name":"rank-0000.safetensors","bytes":0,"checksums":[]}],'''
write("manifest", "whole", manifest % (about % b"0.5"))
write("manifest", "no_metric", manifest % (about % b"null"))
write("manifest", "newer", manifest.replace(b'"version":1', b'"version":2') % (about % b"1"))

trace = b"""{"dtrain":{"schema":1,"rank":0,"world_size":2,"host":"a","pid":42,"first_batch":5,"last_batch":6,"cut":null,
"clock":[{"trace_ns":1700000000000000000,"monotonic_ns":5000,"error_ns":10},
{"trace_ns":1700000000000500000,"monotonic_ns":505000,"error_ns":10}]},
"distributedInfo":{"rank": 0},"baseTimeNanoseconds":1699999999000000000,"traceEvents":[
{"ph":"X","cat":"user_annotation","name":"ProfilerStep#5","pid":42,"tid":42,"ts":1000000.5,"dur":400},
{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":42,"tid":42,"ts":1000010,"dur":20,"args":{"a":[1,"]"]}},
{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":1000010,"dur":20,"args":{"stream":7}},
{"ph":"X","cat":"phase","name":"allreduce_wait","pid":42,"tid":5000001,"ts":1000040,"dur":9,"args":{}},
{"ph":"X","cat":"collective","name":"all_reduce","pid":42,"tid":5000002,"ts":1000040,"dur":9,
"args":{"batch":5,"sequence":1,"operation":"all_reduce"}},
{"ph":"s","id":2,"pid":42,"tid":42,"ts":1000010,"cat":"fwdbwd","name":"fwdbwd"},
{"ph":"M","name":"thread_name","pid":42,"tid":42,"ts":0,"args":{"name":"x"}},
{"ph":"i","s":"g","name":"end","pid":"","tid":"","ts":1}],"traceName":"x"}
"""
write("trace", "plain", trace)
write("trace", "gzip", packed(trace))
write("trace", "no_kernels", trace.replace(b'"kernel"', b'"cpu_op"'))
write("trace", "cut_off", trace[:900])

for number, name in enumerate(["uint16", "uint32", "int32", "int64"]):
    write("tokens", name, bytes([number, 3]) + np.arange(10).astype(name).tobytes())

write("csv", "header", b"\x11a,b,label\n1,2.5,3\n4,-5e3,6\n")
write("csv", "quotes", b'\x19\xef\xbb\xbf"a","b ""c""",b\r\n1,"2",3\r\n\r\n"4",5,6')
write("csv", "tabs_without_header", b"\x041\t2\n3\t4\n")
write("csv", "not_numbers", b"\x11a,b\n1,x\n")
write("csv", "gzip", b"\x11" + packed(b"a,b\n1,2\n"))
state = b'{"epoch":3,"position":12,"skipped":0,"seed":7,"order":"50 samples in one window"}'
write("loader_state", "whole", state)
write("loader_state", "other_order", state.replace(b"50", b"51"))
write("loader_state", "large", state.replace(b"12", b"9223372036854775807").replace(b"7,", b"18446744073709551615,"))

project = root.parents[1]
for target, folder, good, every in (("experiment", "wrong", project / "configs", 4),
                                    ("cluster", "wrong_cluster", project / "tests/config/good_cluster", 3)):
    for file in good.glob("*.yaml"):
        write(target, file.stem, file.read_bytes())
    for topic, title, content in list(wrong_cases(folder))[::every]:
        write(target, f"{topic}_{title}".replace(" ", "_"), content)
write("experiment", "model", b"""model: net.pt
loss: cross_entropy
optimizer: {kind: adamw, lr: 0.001, betas: [0.9, 0.99], weight_decay: 0.01}
data:
  format: npy
  training: {features: x.npy, target: y.npy}
hyperparameters: {global_batch_size: {type: const, val: 8}}
searcher: {metric: loss, max_length: {records: 100}}
""")

hello = (b'{"purpose":"control","session":"fuzz","generation":0,"size":2,"rank":1,"server":0,"pid":1,"host":"",'
         b'"t":"hello","protocol":3,"nonce":"00"}')
challenge = b'{"t":"challenge","protocol":3,"purpose":"control","nonce":"00"}'
refused = b'{"t":"refused","why":"wrong secret"}'
no_proof = b"p" * 32
write("handshake", "hello", b"\0@" + hello)
write("handshake", "wrong_label", b"\0^" + hello)
write("handshake", "no_proof", b"\0" + no_proof + hello)
write("handshake", "welcome", b"\1" + challenge + b'\n@{"t":"welcome","pid":1,"host":"node"}')
write("handshake", "refusal", b"\1" + challenge + b"\n@" + refused)
write("handshake", "stranger", b"\1" + challenge + b"\n" + no_proof + refused)
peer = [b'{"t":"beat","step":3}', b'{"t":"get","k":"k","id":0}', b'{"t":"set","k":"a","v":{"hex":"ff00"}}',
        b'{"t":"get","k":"later","id":1}', b'{"t":"gather","n":"g","v":"x"}', b'{"t":"who","n":"g"}',
        b'{"t":"who-sets","n":"later"}', b'{"t":"noted"}', b'{"t":"ping","id":1}',
        b'{"t":"set","k":"later","v":"x"}']
write("control_server", "stranger", b"\0" + struct.pack(">I", 32 + len(hello)) + no_proof + hello)
write("control_server", "hello", b"\2" + no_proof + b"\n".join([hello, *peer]))
write("control_server", "peer", b"\3" + b"\n".join(peer))
write("control_server", "finish", b'\3{"t":"finish"}\n{"t":"beat","step":4}')
write("control_server", "fail", b'\3{"t":"fail","rank":1,"step":2,"cause":"out of memory"}\n{"t":"noted"}')
write("control_server", "frame", b"\1" + struct.pack(">IQ", len(peer[0]), 0) + peer[0] + b"m" * 16)

write("control_client", "impostor", b"\2" + challenge + b"\n" + no_proof + b'{"t":"welcome","pid":1,"host":""}')
write("control_client", "refused", b"\2" + challenge + b"\n" + no_proof + refused)
write("control_client", "raw", b"\0" + struct.pack(">I", len(challenge)) + challenge)
write("control_client", "gathered", b'\3{"t":"beat","states":[1,1]}\n{"t":"gathered","n":"g","from":0,"v":["a",{"hex":"ff"}]}\n'
                                    b'{"t":"value","id":0,"v":"x"}\n{"t":"pong","id":1,"time":5}')
write("control_client", "failed", b'\3{"t":"failed","rank":0,"step":5,"cause":"stopped"}')
write("control_client", "missing", b'\3{"t":"missing","n":"g","text":"rank 0"}\n{"t":"finished"}')

def store_text(text):
    return struct.pack("<Q", len(text)) + text


validate, ping = struct.pack("<BI", 0, 0x3C85F7CE), b"\x0d1234"
one, both = struct.pack("<Q", 1) + store_text(b"/k"), struct.pack("<Q", 2) + store_text(b"/k") + store_text(b"/absent")
write("store_server", "whole", b"\0" + validate + ping + b"\x06" + one + b"\x03" + store_text(b"/k"))
write("store_server", "waits", b"\1" + ping + b"\x06" + both + b"\x0c" + b"\x05" + both + b"\x05" + one)
write("store_server", "writes", b"\1\x01" + store_text(b"/k") + store_text(b"stolen"))
write("store_server", "erases", b"\1\x08" + store_text(b"/k"))
write("store_server", "huge", b"\1\x03" + struct.pack("<Q", 1 << 62))
write("store_server", "half", b"\1\x06" + both[:20])
write("store_server", "stranger", b"\0GET / HTTP/1.1\r\n\r\n")
write("store_client", "value", b"\1\0" + store_text(b"value") + struct.pack("<Q", 1))
write("store_client", "no_ping", b"\0HTTP/1.1 400 Bad Request\r\n")
write("store_client", "canceled", b"\1\1")
write("store_client", "huge", b"\1\0" + struct.pack("<Q", 1 << 62))
write("store_client", "half", b"\1\0" + struct.pack("<Q", 100) + b"half")

header = b'{"record":"header","schema":1,"kind":"rank","rank":0,"world_size":1,"host":"node","agent":"node0"}'
step = (b'{"record":"step","batch":1,"epoch":0,"start_ns":1000,"wall_ns":500,"samples":10,"exchanged":true,"phases":'
        b'{"dataloader_next":100,"train_batch":300,"train_batch.forward":100,"allreduce_wait":50,"other":50}}')
rank = [header, b'{"record":"part","part":"loop","start_ns":1000,"end_ns":2000}', step,
        b'{"record":"collective","batch":1,"operation":"all_reduce","bucket":0,"bytes":64,"started_ns":1,"ended_ns":9,'
        b'"bus_bandwidth":1e9}',
        b'{"record":"scope","batch":1,"scope":"a/b","calls":2,"wall_ns":40,"phases":{"train_batch":40}}',
        b'{"record":"loader","batch":1,"queue_depth":0,"workers":1}', b'{"record":"dropped","count":2}',
        b'{"record":"lost","count":1,"reason":"disk full"}', b'{"record":"end","how":"finished","dropped":2,"lost":1}']
agent = [b'{"record":"header","schema":1,"kind":"agent","agent":"node0","host":"node","units":{"free_memory":"bytes"}}',
         b'{"record":"gpu","index":0,"uuid":"GPU-1","name":"a GPU","total_memory":1024}',
         b'{"record":"system","time_ns":5,"interval_ns":4,"free_memory":1e9,"cpu_util_per_core":[1,2.5],'
         b'"gpus":[{"index":0,"gpu_util":5}],"processes":[{"rank":0,"resident_memory":4096,"cpu_util":50}]}', b'{"record":"end","how":"all ranks ended"}']
write("dump", "whole", two(b"\n".join(rank) + b"\n", b"\n".join(agent) + b"\n"))
write("dump", "torn", two(b"\n".join([header, step])[:-20], b""))
write("dump", "newer", two(header.replace(b'"schema":1', b'"schema":2') + b"\n", b""))

events = [b'{"time":"2026-03-01T12:00:00Z","event":"run_started","pid":5,"host":"a","start_ticks":7,"world_size":2}',
          b'{"time":"2026-03-01T12:00:01Z","event":"attempt_started","attempt":1,"step":0}',
          b'{"time":"2026-03-01T12:00:02Z","event":"rank_started","rank":0,"pid":6,"host":"a","start_ticks":8}',
          b'{"time":"2026-03-01T12:00:03Z","event":"checkpoint_saved","rank":0,"step":5,"epoch":0,"path":"/c/step-5","bytes":9,'
          b'"reason":"period","copy_s":0.1,"wait_s":0,"write_s":0.2,"metric":"loss","metric_value":"nan","deleted":["step-1"]}',
          b'{"event":"checkpoint_failed","step":6,"cause":"disk full","retried":true}',
          b'{"event":"attempt_failed","attempt":1,"cause":"rank 0 died","restart":1}',
          b'{"event":"records_lost","rank":0,"count":3,"reason":"disk full"}', b'{"event":"agent_ended","agent":"a","status":"killed"}',
          b'{"time":"2026-03-01T12:01:00Z","event":"run_ended","state":"failed","exit_code":1,"cause":"x"}']
plan = (b'{"name":"net","world_size":2,"slot_type":"cpu","batch_per_rank":[4,4],"length":{"batches":10,"batches_per_epoch":5},'
        b'"flops":{"per_sample":1e6,"dtype":"float32","device":"cpu"},"strategy":{"strategy":"sharded","text":"t","host_bytes":{"a":1}},'
        b'"experiment":{"name":"net","searcher":{"metric":"loss","smaller_is_better":true},"optimizations":{"aggregation_frequency":2}}}')
metrics = [b'{"time":"2026-03-01T12:00:03Z","kind":"training","batch":5,"samples":40,"optimizer_steps":2,"learning_rate":0.1,'
           b'"gradient_norm":"inf","metrics":{"loss":0.5}}',
           b'{"time":"2026-03-01T12:00:04Z","kind":"validation","batch":5,"metrics":{"loss":"nan","accuracy":0.5}}']
lines = b"\n".join(events) + b"\n"
write("run_files", "whole", two(lines, two(plan, b"\n".join(metrics) + b"\n")))
write("run_files", "torn", two(lines[:-30], two(plan[:-30], metrics[0])))
write("run_files", "wrong_types", two(b'{"event":5,"pid":"x"}\n[1]\n', two(b'{"name":1,"experiment":[]}', b'{"kind":{},"metrics":1}\n')))

request = (b'{"slots":2,"cores_per_slot":1,"is_single_node":false,"resource_pool":"default","slot_type":0,"policy":0,'
           b'"allow_heterogeneous_fits":false,"max_slots":null,"elastic":[1,2,4,60000000000],"can_yield":true,"preemption":false,'
           b'"agents":[["a",2,"default",0],["b",4,"default",0,[],[[0,1,2,3]]]]}')
write("ledger", "request", b"\0" + request)
write("ledger", "wrong_types", b"\0" + request.replace(b'"default"', b"5"))
write("ledger", "claim", b"\1node-1:0,1;node-2:0=GPU-1,3=GPU-2;node-3:0@0+1,1@2+3")
