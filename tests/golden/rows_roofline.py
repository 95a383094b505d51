"""Our values: ridges, intensities, and how far below the ridge decode stays."""

from builders import a_layer_group, a_shape, an_attention
from golden.documents import ELEMENT_BYTES, ROWS, gpu, model, nominal_speeds, row
from golden.formulas import decode_intensity, matrix_vector_work
from tonnage.catalog.engine_speed import TEXTBOOK_SPEED
from tonnage.catalog.shape import DenseFfn
from tonnage.sizing.parallelism.shard import Shard, shard_of
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.speeds import batch_at_ridge, ridge_flop_per_byte
from tonnage.sizing.step_time.step import Step, step_time


def ridge(gpu_name, precision):
    figures = gpu(gpu_name)
    return ridge_flop_per_byte(
        peak_flop_per_s=figures.flop_per_s(precision),
        memory_bytes_per_s=figures.memory_bytes_per_s,
    )


@row("ridge-b200-fp4")
def ridge_b200_fp4():
    return ridge("B200", "fp4")


@row("ridge-h100-fp16")
def ridge_h100_fp16():
    return ridge("H100-SXM5", "bf16")


@row("ridge-a100-fp16")
def ridge_a100_fp16():
    return ridge("A100-SXM4-80GB", "bf16")


@row("ridge-b200-fp8")
def ridge_b200_fp8():
    return ridge("B200", "fp8")


@row("decode-intensity-is-batch")
def decode_intensity_is_batch():
    return {
        batch: decode_intensity(num_sequences=batch, weight_element_bytes=2)
        for batch in (1, 8, 32, 64, 128)
    }


@row("prefill-intensity")
def prefill_intensity():
    # Prompt tokens share a read of the weights as sequences of a batch do.
    return {512: decode_intensity(num_sequences=512, weight_element_bytes=2)}


@row("batch-to-saturate-b200")
def batch_to_saturate_b200():
    return batch_at_ridge(ridge=ridge("B200", "fp8"), weight_element_bytes=1)


@row("batch-to-saturate-h100")
def batch_to_saturate_h100():
    return batch_at_ridge(ridge=ridge("H100-SXM5", "bf16"), weight_element_bytes=2)


@row("decode-intensity-fp4")
def decode_intensity_fp4():
    return decode_intensity(num_sequences=1, weight_element_bytes=ELEMENT_BYTES["fp4"])


@row("matvec-32b")
def matvec_32b():
    accesses, ops = matrix_vector_work(rows=8192, columns=8192)
    return {"accesses": accesses, "ops": ops}


@row("roofline-matrix-70b")
def roofline_matrix_70b():
    """Weights only; two-matrix FFN and full K/V projections, as the document's program counts."""
    read_bytes = parameters_70b(num_kv_heads=64, num_matrices=2, num_tables=0) * 2
    shard = Shard(weights_bytes=read_bytes, dense_read_bytes=read_bytes)

    def tok_s(gpu_name, batch):
        step = Step(num_sequences=batch, context_tokens=0)
        return batch / step_time(shard, nominal_speeds(gpu_name), TEXTBOOK_SPEED, step).total_s

    gpus = [cells[0] for cells in ROWS["roofline-matrix-70b"]["rows"]]
    return {"gpu": gpus, "ridge": [ridge(name, "bf16") for name in gpus]} | {
        f"tok_s_b{batch}": [tok_s(name, batch) for name in gpus] for batch in (1, 8, 32, 128)
    }


@row("params-70b-two-matrix-ffn")
def params_70b_two_matrix_ffn():
    return parameters_70b(num_kv_heads=8, num_matrices=3, num_tables=2)


def parameters_70b(*, num_kv_heads, num_matrices, num_tables):
    """Return the parameters of Llama 3 70B counted from its layers, with so many vocabularies."""
    stated = model("llama-3-70b")
    attention = an_attention(num_heads=64, num_kv_heads=num_kv_heads)
    ffn = DenseFfn(intermediate_size=28672, num_matrices=num_matrices)
    shape = a_shape(
        groups=(a_layer_group(num_layers=stated.layers, attention=attention, ffn=ffn),),
        hidden_size=8192,
        vocab_size=128_256 if num_tables else 0,
        tied_embeddings=num_tables == 1,
    )
    shard = shard_of(shape, weights=shape.weight_format, parallelism=Parallelism())
    return shard.weights_bytes / shape.weight_format.bytes_per_parameter
