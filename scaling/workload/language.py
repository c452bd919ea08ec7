"""Language models from ``transformers``, built from their configuration with random weights: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaling.workload.task import Batch, Count, DivisorOf, Task

Heads = Annotated[Count, DivisorOf("hidden")]

MASKED_SHARE = 0.15  # of the positions: Devlin et al. 2019, arXiv 1810.04805, section 3.1
IGNORED = -100  # the label that cross_entropy leaves out by default


def gpt(layers: Count, hidden: Count, heads: Heads, seq: Count, vocab: Count) -> Task:
    """Return a GPT-2 decoder that predicts the next token at each of ``seq`` positions; the head shares the embedding's weight.

    Args:
        layers: Transformer blocks.
        hidden: Width of the residual stream; a multiple of ``heads``.
        heads: Attention heads of a block.
        seq: Tokens of a sample.
        vocab: Tokens known.
    """
    from transformers import GPT2Config, GPT2LMHeadModel  # here, because the import takes seconds

    config = GPT2Config(
        n_layer=layers,
        n_embd=hidden,
        n_head=heads,
        n_positions=seq,
        vocab_size=vocab,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        activation_function="gelu_pytorch_tanh",  # GPT-2's own formula as one kernel: written out it is eight, in fp32 under autocast
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",  # type: ignore[call-arg]  # taken by every configuration's **kwargs
    )
    return Task(GPT2LMHeadModel(config), _next_tokens(seq, vocab), _token_loss, tokens_per_sample=seq)


def llama(
    layers: Count, hidden: Count, heads: Heads, key_value_heads: Annotated[Count, DivisorOf("heads")], intermediate: Count, seq: Count, vocab: Count
) -> Task:
    """Return a Llama decoder that predicts the next token; RMSNorm, rotary positions, gated feed-forward, a head of its own.

    Args:
        layers: Transformer blocks.
        hidden: Width of the residual stream; a multiple of ``heads``.
        heads: Attention heads of a block.
        key_value_heads: Heads that keys and values have; a divisor of ``heads``.
        intermediate: Width inside the feed-forward part.
        seq: Tokens of a sample.
        vocab: Tokens known.
    """
    from transformers import LlamaConfig, LlamaForCausalLM  # here, because the import takes seconds

    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        intermediate_size=intermediate,
        max_position_embeddings=seq,
        vocab_size=vocab,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",  # type: ignore[call-arg]  # taken by every configuration's **kwargs
    )
    return Task(LlamaForCausalLM(config), _next_tokens(seq, vocab), _token_loss, tokens_per_sample=seq)


def bert(layers: Count, hidden: Count, heads: Heads, intermediate: Count, seq: Count, vocab: Count) -> Task:
    """Return a BERT encoder that predicts masked tokens; the head shares the embedding's weight.

    Args:
        layers: Transformer blocks.
        hidden: Width of the residual stream; a multiple of ``heads``.
        heads: Attention heads of a block.
        intermediate: Width inside the feed-forward part.
        seq: Tokens of a sample.
        vocab: Tokens known.
    """
    from transformers import BertConfig, BertForMaskedLM  # here, because the import takes seconds

    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=intermediate,
        max_position_embeddings=seq,
        vocab_size=vocab,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=None,
        attn_implementation="sdpa",  # type: ignore[call-arg]  # taken by every configuration's **kwargs
    )
    # The same number in every sample, so that the mean over micro-batches is the mean over the whole batch.
    masked = max(1, round(MASKED_SHARE * seq))

    def make_batch(samples: int, generator: torch.Generator) -> Batch:
        targets = torch.randint(vocab, (samples, seq), generator=generator)
        positions = torch.rand(samples, seq, generator=generator).topk(masked, dim=1).indices
        hidden_tokens = torch.zeros(samples, seq, dtype=torch.bool).scatter_(1, positions, True)
        replacement = torch.randint(vocab, (samples, seq), generator=generator)
        return {"input_ids": torch.where(hidden_tokens, replacement, targets), "targets": targets.masked_fill(~hidden_tokens, IGNORED)}

    return Task(BertForMaskedLM(config), make_batch, _token_loss, tokens_per_sample=seq)


def gpt_heads_apart(module: nn.Module, parts: int) -> None:
    """Make the layers of a GPT-2 fit to be split over ``parts`` ranks, in place; afterwards it computes the same only when split so.

    GPT-2 keeps queries, keys and values of all heads in one ``Conv1D`` (a transposed linear layer). A slice of it would hold the
    queries of all heads and no keys, so its columns are put in the order in which each rank needs them.

    Args:
        module: A GPT-2, or a stage of one; whatever else it holds is left alone.
        parts: Ranks; a divisor of the heads.
    """
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP, GPT2Attention

    for layer in module.modules():
        if isinstance(layer, GPT2Attention):
            width = layer.embed_dim
            order = torch.arange(3 * width).view(3, parts, width // parts).transpose(0, 1).flatten()
            layer.register_module("c_attn", _linear(layer.c_attn, order))
            layer.split_size = width // parts
        if isinstance(layer, GPT2Attention | GPT2MLP):
            layer.register_module("c_proj", _linear(layer.c_proj))
        if isinstance(layer, GPT2MLP):
            layer.register_module("c_fc", _linear(layer.c_fc))


def _linear(layer: nn.Module, order: Tensor | None = None) -> nn.Linear:
    """Return a ``Conv1D``, whose weight is (inputs, outputs), as a linear layer with its outputs in that order."""
    weight, bias = (layer.get_parameter(name).detach() for name in ("weight", "bias"))
    columns = slice(None) if order is None else order.to(weight.device)
    linear = nn.Linear(weight.shape[0], weight.shape[1], device="meta")  # meta: the values come now, none need be drawn
    linear.weight = nn.Parameter(weight.t()[columns].contiguous())
    linear.bias = nn.Parameter(bias[columns].contiguous())
    return linear


def _next_tokens(seq: int, vocab: int) -> Callable[[int, torch.Generator], Batch]:
    """Return a batch factory of random tokens, each the target of the position before it."""

    def make_batch(samples: int, generator: torch.Generator) -> Batch:
        tokens = torch.randint(vocab, (samples, seq + 1), generator=generator)
        return {"input_ids": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}

    return make_batch


def _token_loss(module: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy over the positions that have a target.

    Args:
        module: Maps ``input_ids`` (samples, seq) to ``logits`` (samples, seq, vocab).
        batch: ``input_ids`` and ``targets``, both (samples, seq).
    """
    logits: Tensor = module(input_ids=batch["input_ids"]).logits
    return functional.cross_entropy(logits.flatten(0, 1).float(), batch["targets"].flatten(), ignore_index=IGNORED)
