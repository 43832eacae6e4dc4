"""Requests with a paged cache, and attention over them by definition: token by token, float64.

Nothing here knows of ops or backends. Each new token has a list of the tokens it sees; what no
token may read (unused slots, the slots of new tokens) holds NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

NOWHERE = 2**31 - 1


@dataclass
class Request:
    prefix: int
    sees: list[list[int]]  # for each new token the indices of the tokens it attends to

    @property
    def length(self) -> int:
        return self.prefix + len(self.sees)


@dataclass
class PagedRequests:
    requests: list[Request]
    pool_rows: list[int]
    req_to_token: Tensor  # [rows, columns] int32
    keys: list[Tensor]  # per request [length, kv_heads, D]
    values: list[Tensor]
    k_buffer: Tensor
    v_buffer: Tensor
    queries: Tensor  # [new tokens of all requests, heads, D]

    def slots(self, index: int) -> Tensor:
        row, length = self.pool_rows[index], self.requests[index].length
        return self.req_to_token[row, :length].long()

    def new_of(self, per_request: list[Tensor]) -> Tensor:
        """Rows of the new tokens of all requests, one request after the other."""
        pairs = zip(per_request, self.requests, strict=True)
        return torch.cat([rows[request.prefix :] for rows, request in pairs])


def make(
    requests: list[Request], *, heads: int, kv_heads: int, dim: int, v_dim: int, seed: int
) -> PagedRequests:
    """Cache the prefixes only; slots are a random permutation, pool rows are not 0, 1, 2, .."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    total = sum(request.length for request in requests)
    slots = torch.randperm(total + 3, generator=generator)[:total].int()
    columns = max(request.length for request in requests) + 2
    rows = torch.randperm(len(requests) + 2, generator=generator)[: len(requests)].tolist()
    table = torch.full((len(requests) + 2, columns), NOWHERE, dtype=torch.int32)
    k_buffer = torch.full((total + 3, kv_heads, dim), torch.nan)
    v_buffer = torch.full((total + 3, kv_heads, v_dim), torch.nan)
    keys, values, start = [], [], 0
    for row, request in zip(rows, requests, strict=True):
        own = slots[start : start + request.length]
        start += request.length
        table[row, : request.length] = own
        keys.append(normal(request.length, kv_heads, dim))
        values.append(normal(request.length, kv_heads, v_dim))
        k_buffer[own[: request.prefix].long()] = keys[-1][: request.prefix]
        v_buffer[own[: request.prefix].long()] = values[-1][: request.prefix]
    queries = normal(sum(len(request.sees) for request in requests), heads, dim)
    return PagedRequests(requests, rows, table, keys, values, k_buffer, v_buffer, queries)


def expected(paged: PagedRequests, scale: float) -> Tensor:
    """Return `[new tokens, heads, Dv]` float64: a weighted mean of values, one token at a time."""
    outputs, row = [], 0
    for request, keys, values in zip(paged.requests, paged.keys, paged.values, strict=True):
        for sees in request.sees:
            per_head = []
            for head in range(paged.queries.shape[1]):
                shared = head * keys.shape[1] // paged.queries.shape[1]
                query = paged.queries[row, head].double().numpy()
                weights = numpy.array(
                    [numpy.exp(scale * query.dot(keys[j, shared].double().numpy())) for j in sees]
                )
                seen = numpy.stack([values[j, shared].double().numpy() for j in sees])
                per_head.append((weights[:, None] * seen).sum(0) / weights.sum())
            outputs.append(numpy.stack(per_head))
            row += 1
    return torch.from_numpy(numpy.stack(outputs))


def causal(prefix: int, new: int) -> Request:
    return Request(prefix, [list(range(prefix + i + 1)) for i in range(new)])


def tree(prefix: int, parents: list[int]) -> Request:
    """New tokens form a tree; `parents[i]` is the parent of new token i, -1 for the root."""
    sees = []
    for node in range(len(parents)):
        path, at = [], node
        while at >= 0:
            path.append(prefix + at)
            at = parents[at]
        sees.append([*range(prefix), *sorted(path)])
    return Request(prefix, sees)


def tree_mask(request: Request) -> Tensor:
    """`[new, new]` bool: who among the new tokens sees whom."""
    mask = torch.zeros(len(request.sees), len(request.sees), dtype=torch.bool)
    for row, sees in enumerate(request.sees):
        for token in sees:
            if token >= request.prefix:
                mask[row, token - request.prefix] = True
    return mask
