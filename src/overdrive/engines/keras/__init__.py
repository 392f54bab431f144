"""What answers the calls of Keras's models on TensorFlow: a graph of TensorFlow's, or an engine built from it."""
