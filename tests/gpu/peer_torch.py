# SPDX-License-Identifier: Apache-2.0
"""CapPa written plainly in PyTorch, timed: peer of tools/gpu_check. Argument: a JSON object with the shapes. Last line: JSON.

torch.compile, scaled_dot_product_attention, AdamW (fused); bf16 = autocast, tf32 = f32 with TF32 products."""
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

S = json.loads(sys.argv[1])
D, HEADS, TEXT, BATCH, VOCABULARY = S["width"], S["heads"], S["text"], S["batch"], S["vocabulary"]
TOKENS = (S["side"] // S["patch"]) ** 2


class Attention(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.q, self.out = nn.Linear(D, D, bias=bias), nn.Linear(D, D, bias=bias)
        self.kv = nn.Linear(D, 2 * D, bias=bias)

    def forward(self, x, memory, mask=None):
        def heads(t):
            return t.unflatten(-1, (HEADS, D // HEADS)).transpose(1, 2)
        k, v = self.kv(memory).chunk(2, -1)
        y = F.scaled_dot_product_attention(heads(self.q(x)), heads(k), heads(v), attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self, cross, bias):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(D, eps=1e-6), Attention(bias)
        if cross:
            self.norm2, self.cross = nn.LayerNorm(D, eps=1e-6), Attention(bias)
        self.norm3 = nn.LayerNorm(D, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(D, S["mlp"], bias=bias), nn.GELU(approximate="tanh"), nn.Linear(S["mlp"], D, bias=bias))

    def forward(self, x, memory=None, mask=None):
        y = self.norm1(x)
        x = x + self.attention(y, y, mask)
        if memory is not None:
            x = x + self.cross(self.norm2(x), memory)
        return x + self.mlp(self.norm3(x))


class CapPa(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, D, S["patch"], S["patch"])
        self.positions = nn.Parameter(torch.randn(1, TOKENS, D) * 0.02)
        self.encoder = nn.ModuleList(Block(False, True) for _ in range(S["encoder"]))
        self.encoder_norm = nn.LayerNorm(D, eps=1e-6)
        self.embedding = nn.Embedding(VOCABULARY + 1, D)
        self.text_positions = nn.Parameter(torch.randn(1, TEXT, D) * 0.02)
        self.decoder = nn.ModuleList(Block(True, False) for _ in range(S["decoder"]))
        self.decoder_norm, self.head = nn.LayerNorm(D, eps=1e-6), nn.Linear(D, VOCABULARY)

    def forward(self, image, ids, mask, rows, labels):
        x = self.stem(image).flatten(2).transpose(1, 2) + self.positions
        for block in self.encoder:
            x = block(x)
        x = self.encoder_norm(x)
        y = self.embedding(ids) + self.text_positions
        for block in self.decoder:
            y = block(y, x, mask)
        y = self.decoder_norm(y).flatten(0, 1)[rows]  # rows that carry a loss
        return F.cross_entropy(self.head(y).float(), labels, reduction="sum") / BATCH


def main():
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    device = torch.device("cuda")
    model = CapPa().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    image = torch.rand(BATCH, 3, S["side"], S["side"], device=device) * 2 - 1
    ids = torch.full((BATCH, TEXT), VOCABULARY, device=device)  # three examples in four are parallel: masks only
    ids[: BATCH // 4] = torch.randint(VOCABULARY, (BATCH // 4, TEXT), device=device)
    mask = torch.ones(BATCH, 1, TEXT, TEXT, dtype=torch.bool, device=device)
    mask[: BATCH // 4] = torch.ones(TEXT, TEXT, dtype=torch.bool, device=device).tril()
    rows = torch.arange(BATCH * TEXT, device=device)
    rows = rows[rows % 10 < 3]  # 30 % of the positions are targets
    labels = torch.randint(VOCABULARY, rows.shape, device=device)
    compiled = torch.compile(model)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=S["precision"] == "bf16"):
            loss = compiled(image, ids, mask, rows, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    for _ in range(5):
        step()
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    print(json.dumps({"ms_per_step": 1e3 * statistics.median(times), "loss": float(step()),
                      "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30,
                      "versions": {"torch": torch.__version__, "cuda": torch.version.cuda}}))


main()
