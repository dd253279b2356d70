"""ONNX files without JAX: answers, scores, times and a server.

Nothing here imports JAX, Flax or PyTorch, so a server needs only ONNX Runtime, `tokenizers`, numpy and the web
server's packages (`launch/serve/requirements.txt`). `bertjax convert --to=MODEL.onnx` writes the files.
"""
