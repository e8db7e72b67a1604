"""Records what vLLM and SGLang tell about themselves, from their installed packages; no GPU and no running server is needed.

usage: VLLM_PYTHON    record.py vllm   FOLDER_OF_A_MODEL
       SGLANG_PYTHON  record.py sglang FOLDER_OF_A_MODEL
Writes the files of this folder that its README names as recorded. The help is cut to its lines of switches, one for each.
"""

import contextlib
import io
import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent


def write_help(name, version, text):
    """Lines that begin a switch, without what they say; a long choice is cut."""
    lines = [line for line in text.splitlines() if re.match(r" {2}-", line)]
    lines = [re.sub(r" {2,}\S.*", "", line[2:])[:100] for line in lines]
    (HERE / name).write_text(f"usage: {version}, switches only\n\n" + "".join(f"  {line.rstrip()}\n" for line in lines))


def write_json(name, document, drop):
    """Private paths and what is new with every start are left out."""
    text = json.dumps(document, indent=1, default=str)
    (HERE / name).write_text(text.replace(drop, "/models/tiny") + "\n")


def write_metrics(name, wanted, drop):
    from prometheus_client import generate_latest

    lines = generate_latest().decode().splitlines()
    keep = [line for line in lines if re.search(wanted, line) and not line.startswith("# HELP") and "_created" not in line]
    (HERE / name).write_text(("\n".join(keep) + "\n").replace(drop, "/models/tiny"))


def vllm(model):
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    import pydantic
    from vllm import __version__
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.cli import main as command_line
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    out = io.StringIO()
    sys.argv = ["vllm", "serve", "--help=all"]
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        command_line.main()
    write_help("vllm_help.txt", f"vllm serve --help=all, vLLM {__version__}", out.getvalue())
    speculation = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    config = EngineArgs(
        model=model, max_num_seqs=64, max_num_batched_tokens=4096, max_model_len=2048, block_size=32, speculative_config=speculation
    ).create_engine_config()
    sections = pydantic.TypeAdapter(VllmConfig).dump_python(config, mode="json", fallback=str)
    for section in ("profiler_config", "structured_outputs_config", "observability_config"):
        sections.pop(section, None)
    for name in ("target_model_config", "draft_model_config", "target_parallel_config", "draft_parallel_config"):
        sections["speculative_config"].pop(name, None)
    env = {"VLLM_SERVER_DEV_MODE": True, "VLLM_USE_FLASHINFER_SAMPLER": None}
    write_json("vllm_server_info.json", {"vllm_config": sections, "vllm_env": env, "system_env": {}}, model)
    logger = PrometheusStatLogger(config, [0, 1])
    logger.log_engine_initialized()
    write_metrics(
        "vllm_metrics_recorded.txt",
        r"^(# TYPE )?vllm:(prompt_tokens|generation_tokens|prefix_cache|external_prefix|spec_decode|cache_config_info|num_requests_running)",
        model,
    )


def sglang(model):
    import argparse

    from sglang.srt.observability.metrics_collector import TokenizerMetricsCollector
    from sglang.srt.server_args import ServerArgs, prepare_server_args
    from sglang.version import __version__

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    out = io.StringIO()
    parser.print_help(out)
    write_help("sglang_help.txt", f"python -m sglang.launch_server --help, SGLang {__version__}", out.getvalue())
    switches = "--device cpu --mem-fraction-static 0.8 --max-running-requests 16 --chunked-prefill-size 1024".split()
    switches += "--cuda-graph-max-bs-decode 64 --disable-radix-cache --tp 2 --attention-backend torch_native".split()
    resolved = prepare_server_args(["--model-path", model, *switches]).resolved_dict()
    resolved = {name: value for name, value in resolved.items() if value is not None or name.startswith("cuda_graph")}
    # What only a started server adds, as sglang/srt/managers/scheduler_components/internal_state.py writes it.
    state = {"effective_max_running_requests_per_dp": 16, "last_gen_throughput": 0.0, "avg_spec_accept_length": 2.5}
    resolved |= {"launch_command": "sglang serve --port 30000", "max_total_num_tokens": 262144, "internal_states": [state]}
    write_json("sglang_server_info.json", resolved | {"version": __version__}, model)
    from sglang.srt.observability import metrics_collector

    nothing = type("Nothing", (), {"__getattr__": lambda self, name: None})()  # no options of metrics are given
    metrics_collector.get_observability = lambda: nothing
    labels = {"model_name": "m", "engine_type": "unified"}
    collector = TokenizerMetricsCollector(labels=labels)
    collector.observe_one_finished_request(
        labels=labels, prompt_tokens=4096, generation_tokens=250, cached_tokens=128, e2e_latency=1.0, has_grammar=False,
        cached_tokens_details={"device": 100, "host": 28}, spec_verify_ct=100, is_streaming=True)
    collector.observe_one_finished_request(
        labels=labels, prompt_tokens=4, generation_tokens=6, cached_tokens=0, e2e_latency=1.0, has_grammar=False)
    write_metrics("sglang_metrics_recorded.txt", r"^(# TYPE )?sglang:(prompt_tokens|generation_tokens|cached_tokens|spec_)\w*_total", model)


{"vllm": vllm, "sglang": sglang}[sys.argv[1]](sys.argv[2])
