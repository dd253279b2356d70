"""Files of other libraries: Hugging Face checkpoints, tokenizers and ONNX, read and written with tables of names."""
