"""A rank with loader processes for a test to end. Usage: ``python -m tests.workload.input_process``; prints their ids."""

import multiprocessing
import time

import torch

from scaling.spec import InputSpec
from scaling.workload.input import Feed
from scaling.workload.perceptron import mlp

if __name__ == "__main__":
    task = mlp(width=4, depth=1, classes=2)
    batch = {key: value.clone() for key, value in task.make_batch(2, torch.Generator()).items()}
    feed = Feed(task, (batch,), InputSpec(kind="loader", workers=2), (0, 0))
    feed.refill()
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(60)
