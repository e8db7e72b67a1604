"""Prints aiperf_aggregate_recorded.json: what AIPerf writes of four runs of which one failed, and of one run.

usage: PYTHON record_aiperf.py     PYTHON has aiperf
"""

import json

from aiperf.common.models.export_models import JsonMetricResult
from aiperf.exporters.aggregate.aggregate_confidence_json_exporter import AggregateConfidenceJsonExporter
from aiperf.orchestrator.aggregation.confidence import ConfidenceAggregation
from aiperf.orchestrator.models import RunResult


def written(runs):
    exporter = AggregateConfidenceJsonExporter.__new__(AggregateConfidenceJsonExporter)  # it needs no folder to make the text
    exporter._result = ConfidenceAggregation(0.95).aggregate(runs)
    return json.loads(exporter._generate_content())


rates = [JsonMetricResult(unit="tokens/sec", avg=rate) for rate in (100.0, 101.0, 103.0)]
runs = [RunResult(label=f"run_{i:04d}", success=True, summary_metrics={"output_token_throughput": rate}) for i, rate in enumerate(rates)]
failed = RunResult(label="run_0003", success=False, error="crash")
print(json.dumps({"three": written([*runs, failed]), "one": written(runs[:1])}, indent=1))
