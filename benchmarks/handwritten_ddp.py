"""The yardstick of ``overhead.py``: a plain DistributedDataParallel loop, as anybody would write it, started by ``torchrun``.

Knows nothing of the profiler. It only waits for a word on a TCPStore before each block, so that two programs can take turns.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    port, threads, shape, cores = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4])
    rank = int(os.environ["RANK"])
    if cores:
        os.sched_setaffinity(0, cores[rank])
    torch.set_num_threads(threads)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=shape["layers"],
        n_embd=shape["hidden"],
        n_head=shape["heads"],
        n_positions=shape["seq"],
        vocab_size=shape["vocab"],
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        activation_function="gelu_pytorch_tanh",
        use_cache=False,
    )
    model = DistributedDataParallel(GPT2LMHeadModel(config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(shape["vocab"], (shape["batch"], shape["seq"] + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    turns = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    block = 0
    while True:
        turns.wait([f"go/{block}"], timedelta(seconds=3600))
        steps = int(turns.get(f"go/{block}"))
        if steps == 0:
            break
        for step in range(steps + 2):
            if step == 2:
                start = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)  # first, as ours: activations then take the memory that gradients leave
            logits = model(input_ids=inputs).logits
            loss = torch.nn.functional.cross_entropy(logits.view(-1, shape["vocab"]), targets.view(-1))
            loss.backward()
            optimizer.step()
        turns.set(f"seconds/{block}/{rank}", str((time.perf_counter() - start) / steps))
        block += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
