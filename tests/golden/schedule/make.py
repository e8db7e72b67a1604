"""Quantiles of gamma distributions with mean 1, from scipy, and times of a ramp, by numerical integration.

Run by hand: python tests/golden/schedule/make.py > tests/golden/schedule/gamma.json
"""
import json

import scipy
from scipy import integrate, optimize, stats

PROBABILITIES = [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99]


def ramp(start, end, n):
    """Times at which the integral of a rate that rises linearly reaches 0, 1, ..., n."""
    length = 2 * n / (start + end)

    def arrived(t):
        return integrate.quad(lambda u: start + (end - start) * u / length, 0, t)[0]

    return [optimize.brentq(lambda t, k=k: arrived(t) - k, 0, length * 1.001) for k in range(n + 1)]


print(json.dumps({
    "scipy": scipy.__version__,
    "probabilities": PROBABILITIES,
    "gamma": [{"shape": k, "quantiles": [float(stats.gamma.ppf(p, k, scale=1 / k)) for p in PROBABILITIES]}
              for k in (0.25, 0.5, 1, 2, 7.5)],
    "ramps": [{"from": a, "to": b, "times": ramp(a, b, n)} for a, b, n in ((1, 10, 20), (8, 2, 10), (3, 3, 6))],
}, indent=1))
