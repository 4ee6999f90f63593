"""Writes the snapshots of TestPython: what torch.cuda.memory._dump_snapshot
pickles, with two devices, in every protocol: python3 snapshot.py"""

import pathlib
import pickle

stack = [{"filename": f"/src/model{i}.py", "line": i, "name": f"forward{i}"} for i in range(3)]


def entry(action, addr, size, stream=0, key="addr"):
    return {"action": action, key: addr, "size": size, "stream": stream, "time_us": 1700000000000000,
            "frames": stack, "pool_id": (0, 0), "user_metadata": ""}


def freed(addr, size, stream=0):
    return [entry("free_requested", addr, size, stream), entry("free_completed", addr, size, stream)]


def segment(device, address, stream, blocks):
    end = address
    for block in blocks:
        block |= {"address": end, "frames": stack}
        end += block["size"]
    return {"device": device, "address": address, "total_size": 2 << 20, "allocated_size": 1024, "active_size": 1536,
            "requested_size": 900, "stream": stream, "segment_type": "small", "segment_pool_id": (0, 0),
            "is_expandable": False, "frames": stack, "blocks": blocks}


def block(size, requested, state="active_allocated"):
    return {"size": size, "requested_size": requested, "state": state}


BASE = 0x7F1200000000
OTHER = 0x55D0C0FFEE00  # a stream
snapshot = {
    "segments": [
        segment(0, BASE, 0, [block(1024, 1000), block(512, 0, "inactive"), block(512, 400, "active_pending_free")]),
        segment(1, BASE, 0, [block(512, 7)]),
        segment(0, BASE + (2 << 20), OTHER, [block(4096, 4000), block(512, 100)]),
    ],
    "device_traces": [
        [
            *freed(BASE + 1024, 300),  # from before the first entry
            entry("segment_alloc", BASE + (2 << 20), 2 << 20, OTHER),
            entry("alloc", BASE + (2 << 20), 4000, OTHER),
            entry("alloc", BASE + 1536, 400),
            entry("oom", 123456, 1 << 40, key="device_free"),
            entry("free_requested", BASE + 1536, 400),  # another stream still uses it
            entry("snapshot", 0, 0),
        ],
        [entry("alloc", BASE, 7)],
    ],
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "garbage_collection_threshold": 0.0,
                           "expandable_segments": False, "max_split_size": -1, "nothing": None},
    "external_annotations": [],
}

for protocol in 2, 3, 4, 5:
    path = pathlib.Path(__file__).with_name(f"snapshot{protocol}.pickle")
    path.write_bytes(pickle.dumps(snapshot, protocol))
