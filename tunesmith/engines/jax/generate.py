"""Generation in batches with a key-value cache.

Prompts of a batch often begin alike (one system message, one schema, many questions). Their
common beginning goes through the model once and its keys and values are shared; only what differs
is computed per prompt. Prompts are sorted so that those which begin alike meet in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from tunesmith.engines.contract import Completion
from tunesmith.engines.jax.families import gemma3
from tunesmith.engines.jax.families.gemma3 import Adapters, Cache
from tunesmith.engines.jax.params import Params
from tunesmith.errors import UserError
from tunesmith.models.catalog import ModelConfig
from tunesmith.recipe.schema import Generation

# Lengths are rounded up to multiples of these, so that few programs are compiled.
_PREFIX_STEP = 32
_SLOT_STEP = 64
# Tokens decoded on the device between two looks by the host.
_STRIDE = 16

Done = Callable[[int, np.ndarray], bool]


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def common_prefix(prompts: Sequence[np.ndarray]) -> int:
    """Number of tokens with which all prompts begin alike, one short of the shortest at most."""
    shortest = min(len(p) for p in prompts) - 1
    differs = np.zeros(shortest, bool)
    for prompt in prompts[1:]:
        differs |= prompt[:shortest] != prompts[0][:shortest]
    return int(np.argmax(differs)) if differs.any() else shortest


def group(prompts: Sequence[np.ndarray], batch_size: int) -> list[list[int]]:
    """Indices of the prompts in batches: sorted, and cut early where the beginning changes."""
    order = sorted(range(len(prompts)), key=lambda i: prompts[i].tolist())
    batches: list[list[int]] = []
    for index in order:
        batch = batches[-1] if batches else []
        if batch and len(batch) < batch_size:
            before = common_prefix([prompts[batch[0]], prompts[batch[-1]]])
            after = common_prefix([prompts[batch[0]], prompts[index]])
            # A shorter common beginning is worth a new batch once this one is fairly full.
            if 2 * after >= before or 4 * len(batch) < batch_size:
                batch.append(index)
                continue
        batches.append([index])
    return batches


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _extend(
    config: ModelConfig,
    adapters: Adapters,
    params: Params,
    cache: Cache,
    tokens: jax.Array,
    positions: jax.Array,
    slot: jax.Array,
) -> tuple[jax.Array, Cache]:
    """Run tokens through the model; hidden states of the last ones [B, D]."""
    h, cache = gemma3.extend(config, params, cache, tokens, positions, slot, adapters)
    return h[:, -1], cache


@partial(jax.jit, static_argnums=(0, 1))
def _spread(batch: int, slots: int, cache: Cache) -> Cache:
    """A cache of one sequence as that of a batch, with room for more tokens."""

    def widen(array: jax.Array) -> jax.Array:
        room = jnp.zeros((*array.shape[:2], slots, *array.shape[3:]), array.dtype)
        room = jax.lax.dynamic_update_slice(room, array, (0,) * array.ndim)
        return jnp.broadcast_to(room, (array.shape[0], batch, *room.shape[2:]))

    used = cache.positions.shape[1]
    positions = jnp.full((batch, slots), -1).at[:, :used].set(cache.positions)
    return Cache(widen(cache.k), widen(cache.v), positions)


def _sample(logits_BV: jax.Array, settings: Generation, key: jax.Array) -> jax.Array:
    """Next ids [B]: the likeliest, or drawn after temperature, top-k and top-p, in this order."""
    if settings.temperature == 0.0:
        return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
    logits = logits_BV / settings.temperature
    if settings.top_k is not None:
        kth = jax.lax.top_k(logits, min(settings.top_k, logits.shape[-1]))[0][:, -1:]
        logits = jnp.where(logits < kth, -jnp.inf, logits)
    if settings.top_p < 1.0:
        ordered = jnp.sort(logits, axis=-1, descending=True)
        share = jnp.cumsum(jax.nn.softmax(ordered, axis=-1), axis=-1)
        # The token that passes top_p still belongs to the set.
        count = jnp.sum(share < settings.top_p, axis=-1, keepdims=True)
        least = jnp.take_along_axis(ordered, count, axis=-1)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return jax.random.categorical(key, logits, axis=-1).astype(jnp.int32)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=(4,))
def _decode(
    config: ModelConfig,
    adapters: Adapters,
    settings: Generation,
    params: Params,
    cache: Cache,
    h_BD: jax.Array,
    position: jax.Array,
    slot: jax.Array,
    ended: jax.Array,
    stops: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array, jax.Array, Cache, jax.Array]:
    """Up to `_STRIDE` more tokens for each sequence, fewer if all have ended.

    Args:
        h_BD: final hidden states of the newest tokens.
        position: int32 [B], of the tokens to come.
        slot: cache slot of the first of them.
        ended: bool [B], sequences that need no more.
        stops: int32, ids that end an answer.
        key: for sampling.

    Returns:
        Ids [B, stride] with -1 where none was made, hidden states, cache, `ended`.
    """

    def go_on(carry: tuple) -> jax.Array:
        return (carry[0] < _STRIDE) & ~jnp.all(carry[4])

    def one(carry: tuple) -> tuple:
        i, out, h, cache, ended = carry
        ids = _sample(gemma3.logits(params, h), settings, jax.random.fold_in(key, slot + i))
        ids = jnp.where(ended, -1, ids)
        out = jax.lax.dynamic_update_slice(out, ids[:, None], (0, i))
        ended = ended | jnp.isin(ids, stops)
        h, cache = gemma3.extend(
            config,
            params,
            cache,
            jnp.maximum(ids, 0)[:, None],
            jnp.where(ended, -1, position + i)[:, None],
            slot + i,
            adapters,
        )
        return i + 1, out, h[:, -1], cache, ended

    out = jnp.full((h_BD.shape[0], _STRIDE), -1, jnp.int32)
    _, out, h, cache, ended = jax.lax.while_loop(
        go_on, one, (jnp.int32(0), out, h_BD, cache, ended)
    )
    return out, h, cache, ended


class Generator:
    """Continues prompts with one set of weights and settings."""

    def __init__(
        self,
        config: ModelConfig,
        params: Params,
        adapters: Adapters,
        stop_ids: Sequence[int],
        settings: Generation,
    ) -> None:
        self._config, self._params, self._settings = config, params, settings
        self._adapters = Adapters(adapters.scale)
        self._stops = jnp.asarray(list(stop_ids) or [-2], jnp.int32)
        self._key = jax.random.key(settings.seed)

    def run(
        self,
        prompts: Sequence[np.ndarray],
        batch_size: int,
        done: Done | None,
        progress: Callable[[int], None] | None,
    ) -> list[Completion]:
        """Answers in the prompts' order.

        Raises:
            UserError: a prompt is empty, or with its answer longer than the model's positions.
        """
        self._check(prompts)
        answers: dict[int, Completion] = {}
        for batch in group(prompts, batch_size):
            # A short last batch takes the full one's program rather than one of its own.
            rows = min(batch_size, len(prompts))
            answers |= self._batch([prompts[i] for i in batch], batch, rows, done)
            if progress:
                progress(len(answers))
        return [answers[i] for i in range(len(prompts))]

    def _check(self, prompts: Sequence[np.ndarray]) -> None:
        room = self._config.max_position - self._settings.max_new_tokens
        for number, prompt in enumerate(prompts, 1):
            if not 0 < len(prompt) <= room:
                raise UserError(
                    f"prompt {number} has {len(prompt)} tokens; 1 to {room} fit the model together "
                    f"with {self._settings.max_new_tokens} new ones"
                )

    def _batch(
        self, prompts: list[np.ndarray], indices: list[int], rows: int, done: Done | None
    ) -> dict[int, Completion]:
        used = len(prompts)
        prompts = prompts + [prompts[0]] * (rows - used)
        h, cache, slot = self._prefill(prompts)
        position = np.array([len(p) for p in prompts], np.int32)
        ended = np.arange(rows) >= used
        found: list[list[int]] = [[] for _ in prompts]
        stops = set(np.asarray(self._stops).tolist())
        made = 0
        while made < self._settings.max_new_tokens and not ended.all():
            out, h, cache, after = _decode(
                self._config,
                self._adapters,
                self._settings,
                self._params,
                cache,
                h,
                jnp.asarray(position + made),
                jnp.int32(slot + made),
                jnp.asarray(ended),
                self._stops,
                self._key,
            )
            ended = np.array(after)
            for row, ids in enumerate(np.asarray(out)[:used].tolist()):
                found[row] += [i for i in ids if i >= 0]
                if done and not ended[row] and done(indices[row], np.array(found[row], np.int32)):
                    ended[row] = True
            made += _STRIDE
        return {
            index: self._completion(found[row], bool(ended[row]), stops)
            for row, index in enumerate(indices)
        }

    def _completion(self, ids: list[int], ended: bool, stops: set[int]) -> Completion:
        most = self._settings.max_new_tokens
        if len(ids) > most:
            ids, ended = ids[:most], False
        elif ids and ids[-1] in stops:
            ids = ids[:-1]
        return Completion(np.array(ids, np.int32), ended)

    def _prefill(self, prompts: list[np.ndarray]) -> tuple[jax.Array, Cache, int]:
        """Run the prompts; hidden states of their last tokens [B, D], cache, next free slot."""
        shared = common_prefix(prompts) // _PREFIX_STEP * _PREFIX_STEP
        longest = _round_up(max(len(p) for p in prompts) - shared, 8)
        slots = _round_up(
            shared + longest + _round_up(self._settings.max_new_tokens, _STRIDE), _SLOT_STEP
        )
        dtype = self._params["layers.attn.q"].dtype
        cache = gemma3.empty_cache(self._config, 1, shared, dtype)
        if shared:
            at = jnp.arange(shared, dtype=jnp.int32)[None]
            _, cache = self._run(cache, jnp.asarray(prompts[0][None, :shared]), at, 0)
        cache = _spread(len(prompts), slots, cache)
        tokens = np.zeros((len(prompts), longest), np.int32)
        positions = np.full((len(prompts), longest), -1, np.int32)
        for row, prompt in enumerate(prompts):
            rest = prompt[shared:]
            tokens[row, longest - len(rest) :] = rest
            positions[row, longest - len(rest) :] = np.arange(shared, len(prompt))
        h, cache = self._run(cache, jnp.asarray(tokens), jnp.asarray(positions), shared)
        return h, cache, shared + longest

    def _run(
        self, cache: Cache, tokens: jax.Array, positions: jax.Array, slot: int
    ) -> tuple[jax.Array, Cache]:
        return _extend(
            self._config, self._adapters, self._params, cache, tokens, positions, jnp.int32(slot)
        )
