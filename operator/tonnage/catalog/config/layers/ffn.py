"""From configuration keys to the feed-forward block of each layer, one function per family."""

from tonnage.catalog.config.keys.decoder import DecoderKeys, ModelConfigError
from tonnage.catalog.shape import DenseFfn, Ffn, MoeFfn


def dense(keys: DecoderKeys) -> list[Ffn]:
    """One gated block per layer."""
    block = DenseFfn(intermediate_size=keys.needed.intermediate_size)
    return [block] * keys.num_hidden_layers


def all_experts(keys: DecoderKeys) -> list[Ffn]:
    """Experts in every layer, each as wide as ``intermediate_size`` (Mixtral, MiniMax M2)."""
    shared = keys.shared_intermediate_size or 0
    block = moe(keys, width=keys.needed.intermediate_size, shared=shared)
    return [block] * keys.num_hidden_layers


def all_experts_with_bias(keys: DecoderKeys) -> list[Ffn]:
    """Like ``all_experts``, and each expert's matrices have a bias (gpt-oss)."""
    width = keys.needed.intermediate_size
    block = moe(keys, width=width, biases=2 * width + keys.hidden_size)
    return [block] * keys.num_hidden_layers


def expert_marks(keys: DecoderKeys) -> list[bool]:
    """Mark the layers with experts, as ``moe_layer_freq`` lists them.

    Raises:
        ModelConfigError: it is missing, no list, or not of one entry per layer.
    """
    if not isinstance(keys.moe_layer_freq, list):
        raise ModelConfigError("moe_layer_freq is missing or no list of 0 and 1")
    return [bool(mark) for mark in keys.by_layer("moe_layer_freq")]


def interleaved_experts(keys: DecoderKeys) -> list[Ffn]:
    """Llama 4: experts of ``intermediate_size`` and a shared one like them; else the wider MLP."""
    width = keys.needed.intermediate_size
    experts = moe(keys, width=width, shared=width)
    sparse = keys.moe_layers
    if sparse is None:
        step = keys.needed.interleave_moe_layer_step
        sparse = list(range(step - 1, keys.num_hidden_layers, step))
    marks = [layer in sparse for layer in range(keys.num_hidden_layers)]
    return experts_where_sparse(keys, marks, experts, "intermediate_size_mlp")


def experts(keys: DecoderKeys) -> list[Ffn]:
    """Read the keys that most families share: which layers have experts, and which shared ones."""
    width = keys.moe_intermediate_size or keys.needed.intermediate_size
    shared = keys.shared_expert_intermediate_size or keys.shared_intermediate_size
    if shared is None:
        each = keys.moe_shared_expert_intermediate_size or width
        shared = (keys.n_shared_experts or 0) * each
    return experts_where_sparse(keys, _sparse_layers(keys), moe(keys, width=width, shared=shared))


def experts_by_keys(keys: DecoderKeys) -> list[Ffn]:
    """The same of kinds of which some have no experts."""
    return experts(keys) if keys.num_experts else dense(keys)


def _sparse_layers(keys: DecoderKeys) -> list[bool]:
    """Mark the layers with experts, by the list of layers if there is one."""
    if keys.mlp_layer_types is not None:
        return [kind != "dense" for kind in keys.by_layer("mlp_layer_types")]
    if isinstance(keys.moe_layer_freq, list):
        return expert_marks(keys)
    if named := _layer_numbers(keys.moe_layers_enum):
        return [layer in named for layer in range(keys.num_hidden_layers)]
    first, plain = keys.first_k_dense_replace or 0, set(keys.mlp_only_layers or [])
    return [
        layer >= first
        and layer not in plain
        and layer % (keys.moe_layer_freq or 1) == 0
        and (layer + 1) % keys.decoder_sparse_step == 0
        for layer in range(keys.num_hidden_layers)
    ]


def _layer_numbers(layers: str | None) -> set[int]:
    parts = [part.strip() for part in (layers or "").split(",") if part.strip()]
    for part in parts:
        if not part.isdecimal():
            raise ModelConfigError(f"moe_layers_enum names a layer {part!r:.100}")
    return {int(part) for part in parts}


def experts_beside_dense(keys: DecoderKeys) -> list[Ffn]:
    """Gemma 4: where there are experts, every token passes the dense block too."""
    if not keys.enable_moe_block:
        return dense(keys)
    shared = keys.needed.intermediate_size
    block = moe(keys, width=keys.needed.moe_intermediate_size, shared=shared)
    return [block] * keys.num_hidden_layers


def experts_where_sparse(
    keys: DecoderKeys, is_sparse: list[bool], experts: MoeFfn, width: str = "intermediate_size"
) -> list[Ffn]:
    """Return the experts where they are, and elsewhere the dense block with the width of a key."""
    if all(is_sparse):
        return [experts] * len(is_sparse)
    plain = DenseFfn(intermediate_size=getattr(keys.needed, width))
    return [experts if sparse else plain for sparse in is_sparse]


def moe(keys: DecoderKeys, *, width: int, shared: int = 0, biases: int = 0) -> MoeFfn:
    """Read numbers and input of the experts, given their own width and that of shared ones."""
    num_experts, chosen = keys.needed.num_experts, keys.needed.num_experts_per_tok
    if not 1 <= chosen <= num_experts:
        raise ModelConfigError(
            f"num_experts_per_tok = {chosen} is not between 1 and num_experts = {num_experts}"
        )
    return MoeFfn(
        num_experts=num_experts,
        experts_per_token=chosen,
        expert_intermediate_size=width,
        shared_intermediate_size=shared,
        expert_vector_parameters=biases,
        latent_size=keys.moe_latent_size,
    )
