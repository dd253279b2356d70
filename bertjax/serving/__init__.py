"""A server for ONNX files, without JAX, and their times. `bertjax.inference.onnx` has answers and scores.

Nothing here imports JAX, Flax or PyTorch, so a server needs only ONNX Runtime, `tokenizers`, numpy and the web
server's packages (`launch/serve/requirements.txt`). `bertjax convert --to=MODEL.onnx` writes the files.
"""
