"""The child's side of models of Keras on TensorFlow."""
