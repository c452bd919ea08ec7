"""Language models from ``transformers``, built from their configuration with random weights: nothing is downloaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaling.workload.task import Batch, Count, Task

MASKED_SHARE = 0.15  # of the positions: Devlin et al. 2019, arXiv 1810.04805, section 3.1
IGNORED = -100  # the label that cross_entropy leaves out by default


def gpt(layers: Count, hidden: Count, heads: Count, seq: Count, vocab: Count) -> Task:
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
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",  # type: ignore[call-arg]  # taken by every configuration's **kwargs
    )

    def make_batch(samples: int, generator: torch.Generator) -> Batch:
        tokens = torch.randint(vocab, (samples, seq + 1), generator=generator)
        return {"input_ids": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}

    return Task(GPT2LMHeadModel(config), make_batch, _token_loss, tokens_per_sample=seq)


def bert(layers: Count, hidden: Count, heads: Count, intermediate: Count, seq: Count, vocab: Count) -> Task:
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


def _token_loss(module: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy over the positions that have a target.

    Args:
        module: Maps ``input_ids`` (samples, seq) to ``logits`` (samples, seq, vocab).
        batch: ``input_ids`` and ``targets``, both (samples, seq).
    """
    logits: Tensor = module(input_ids=batch["input_ids"]).logits
    return functional.cross_entropy(logits.flatten(0, 1).float(), batch["targets"].flatten(), ignore_index=IGNORED)
