"""Liger's kernels in transformers' Llama."""


def patch_llama(activation_checkpointing: str) -> None:
    """Put Liger's kernels into transformers' Llama, for the whole process.

    Called before the model is made, and never where there is no GPU: the kernels fail when they
    run, not here. Liger rotates queries and keys in the memory of the matrix product that made
    them. Selective checkpointing keeps that product and would rotate it once more, without an
    error and with wrong gradients, so under it the rotation is torch's.
    """
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama(
        rope=activation_checkpointing != "selective",
        cross_entropy=False,
        fused_linear_cross_entropy=False,
    )
