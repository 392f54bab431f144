"""Private names of objects of Keras, TensorFlow and JAX that the seams rely on; `seams/test_private_names.py` compares
them with the source, `test_private_names.py` beside this with what is installed.
Seen in Keras 3.15.1 and TensorFlow 2.21; JAX is looked at where it is installed."""

OF_KERAS: dict[str, tuple[str, ...]] = {
    "layer": ("_flatten_layers", "_get_call_context", "_maybe_reset_call_context", "_layers"),
    "layer on PyTorch": ("_torch_params",),
    "batch normalisation": ("_moments", "_reduction_axes"),
    "optimizer": ("_trainable_variables", "_get_current_learning_rate", "_learning_rate"),
    "symbolic tensor": ("_keras_history",),
    "masked tensor": ("_keras_mask",),
    "adapter of arrays": ("_inputs", "_batch_size", "_shuffle", "_num_samples"),
    "policy": ("_variable_dtype", "_parse_name"),
    "JAX's trainer": ("_get_jax_state",),
    "JAX's tracer": ("_trace",),
    "TensorFlow's context": ("_initialized", "_rng"),
    "error of TensorFlow": ("_message",),
    "function of TensorFlow": ("_clone", "_list_all_concrete_functions"),
    "tensor of TensorFlow": ("_numpy", "_numpy_internal"),
    "variables of TensorFlow": ("_UnreadVariable",),
    "data set": ("_inputs", "_functions"),
}
# Those that techniques ask for themselves.
OF_DATA: dict[str, tuple[str, ...]] = {
    "mapped data set": ("_map_func", "_input_dataset"),
    "iterator over epochs": ("_get_iterator", "_num_batches", "_steps_seen"),
}
