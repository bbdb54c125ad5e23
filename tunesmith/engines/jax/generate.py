"""Generation in batches with a key-value cache.

Prompts often begin alike (one system message, one schema, many questions). Groups of prompts that
do are prefilled together: their common beginning goes through the model once and its keys and
values are shared. Several groups then decode as one batch, for a wide batch costs little more than
a narrow one: each step reads all the weights, however few answers it serves.
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
_SUFFIX_STEP = 16
_SLOT_STEP = 32
# Prompts prefilled together, at most; fewer than the second do not pay for a program of their own.
_GROUP_MOST, _GROUP_LEAST = 32, 8
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


def group(prompts: Sequence[np.ndarray], most: int) -> list[list[int]]:
    """Indices of the prompts in groups of at most `most`, those that begin alike together."""
    order = sorted(range(len(prompts)), key=lambda i: prompts[i].tolist())
    runs: list[list[int]] = []
    for index in order:
        if runs and len(runs[-1]) < most:
            first, last = prompts[runs[-1][0]], prompts[runs[-1][-1]]
            alike = common_prefix([first, last, prompts[index]])
            if 2 * alike >= max(_PREFIX_STEP, common_prefix([first, last])):
                runs[-1].append(index)
                continue
        runs.append([index])
    groups = [run for run in runs if len(run) >= _GROUP_LEAST]
    rest = [index for run in runs if len(run) < _GROUP_LEAST for index in run]
    return groups + [rest[i : i + most] for i in range(0, len(rest), most)]


def batches_of(groups: Sequence[list[int]], batch_size: int) -> list[list[list[int]]]:
    """The groups in batches of at most `batch_size` prompts."""
    batches: list[list[list[int]]] = []
    for members in groups:
        if batches and sum(map(len, batches[-1])) + len(members) <= batch_size:
            batches[-1].append(members)
        else:
            batches.append([members])
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
        most = min(_GROUP_MOST, batch_size)
        for batch in batches_of(group(prompts, most), batch_size):
            # A narrow last batch takes the full one's program rather than one of its own.
            rows = min(batch_size, len(prompts))
            answers |= self._batch(prompts, batch, rows, done)
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
        self,
        prompts: Sequence[np.ndarray],
        groups: list[list[int]],
        rows: int,
        done: Done | None,
    ) -> dict[int, Completion]:
        """Answers of one batch by the prompts' indices; `rows` is its width with padding."""
        h, cache, slot = self._prefill([[prompts[i] for i in members] for members in groups], rows)
        indices = [index for members in groups for index in members]
        used = len(indices)
        position = np.ones(rows, np.int32)
        position[:used] = [len(prompts[i]) for i in indices]
        ended = np.arange(rows) >= used
        found: list[list[int]] = [[] for _ in indices]
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

    def _prefill(self, groups: list[list[np.ndarray]], rows: int) -> tuple[jax.Array, Cache, int]:
        """Run the prompts of all groups; final hidden states [rows, D], cache, next free slot.

        Every prompt ends at the same slot. A group's shared beginning lies at the front, the rest
        of its prompts at that end, each padded on the left; slots between stay empty.
        """
        shared = [common_prefix(g) // _PREFIX_STEP * _PREFIX_STEP for g in groups]
        rests = [
            _round_up(max(map(len, g)) - common, _SUFFIX_STEP)
            for g, common in zip(groups, shared, strict=True)
        ]
        end = max(common + rest for common, rest in zip(shared, rests, strict=True))
        slots = _round_up(end + _round_up(self._settings.max_new_tokens, _STRIDE), _SLOT_STEP)
        width = min(_GROUP_MOST, rows)
        parts = [
            self._prefill_group(members, common, rest, end, slots, width)
            for members, common, rest in zip(groups, shared, rests, strict=True)
        ]

        def join(arrays: list[jax.Array], axis: int) -> jax.Array:
            pieces = [
                jax.lax.slice_in_dim(array, 0, len(members), axis=axis)
                for array, members in zip(arrays, groups, strict=True)
            ]
            padding = rows - sum(map(len, groups))
            if padding:
                shape = list(pieces[0].shape)
                shape[axis] = padding
                pieces.append(jnp.zeros(shape, pieces[0].dtype))
            return jnp.concatenate(pieces, axis=axis)

        h = join([part[0] for part in parts], 0)
        caches = [part[1] for part in parts]
        cache = Cache(
            join([c.k for c in caches], 1),
            join([c.v for c in caches], 1),
            join([c.positions for c in caches], 0),
        )
        return h, cache, end

    def _prefill_group(
        self, prompts: list[np.ndarray], shared: int, rest: int, end: int, slots: int, width: int
    ) -> tuple[jax.Array, Cache]:
        """Hidden states [width, D] and cache of prompts with `shared` first tokens in common."""
        cache = gemma3.empty_cache(self._config, 1, shared, self._params["layers.attn.q"].dtype)
        if shared:
            at = jnp.arange(shared, dtype=jnp.int32)[None]
            _, cache = self._run(cache, jnp.asarray(prompts[0][None, :shared]), at, 0)
        cache = _spread(width, slots, cache)
        tokens = np.zeros((width, rest), np.int32)
        positions = np.full((width, rest), -1, np.int32)
        for row, prompt in enumerate(prompts):
            tail = prompt[shared:]
            tokens[row, rest - len(tail) :] = tail
            positions[row, rest - len(tail) :] = np.arange(shared, len(prompt))
        return self._run(cache, jnp.asarray(tokens), jnp.asarray(positions), end - rest)

    def _run(
        self, cache: Cache, tokens: jax.Array, positions: jax.Array, slot: int
    ) -> tuple[jax.Array, Cache]:
        return _extend(
            self._config, self._adapters, self._params, cache, tokens, positions, jnp.int32(slot)
        )
