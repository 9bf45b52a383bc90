"""`server`: the decoding of a serving engine over HTTP, as it comes. What drafts there, and how, is the server's to choose."""

from __future__ import annotations

from specview.drafting.method import MethodInfo
from specview.fields import Option

URL = Option(
    "url",
    "",
    "The server's address: http://HOST:PORT of a running llama-server, vLLM, SGLang or TensorRT-LLM. A key comes from SPECVIEW_API_KEY.",
    label="address",
)
METHOD = MethodInfo(
    "server",
    "server",
    "A serving engine's own decoding, timed as its tokens arrive: what it drafts with is set where it was started.",
    None,
    options=(URL,),
    family="served",
    served=True,
)
