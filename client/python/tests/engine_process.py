"""A transfer engine in a process of its own: registers bytes, prints where, and obeys lines on standard input."""

import ctypes
import sys

from mooncake.engine import TransferEngine


def main() -> None:
    name, metadata, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    engine = TransferEngine()
    assert engine.initialize(name, metadata, "tcp", "") == 0
    memory = ctypes.create_string_buffer(bytes(range(256)) * (size // 256), size)
    address = ctypes.addressof(memory)
    assert engine.register_memory(address, size) == 0
    print(engine.get_rpc_port(), address, flush=True)
    for line in sys.stdin:
        match line.split():
            case ["bytes", at, length]:
                print(memory.raw[int(at) : int(at) + int(length)].hex(), flush=True)
            case ["unregister"]:
                print(engine.unregister_memory(address), flush=True)
            case ["notifies"]:
                print([(notice.name, notice.msg) for notice in engine.get_notifies()], flush=True)


main()
