#!/usr/bin/env python3
"""Writes stats.json beside this file: what scipy, numpy and statsmodels answer to the questions that harness/stats answers.
Run by hand with scipy >= 1.10, statsmodels >= 0.14: python3 tests/golden/stats/make.py"""
import json, os
import numpy as np, scipy, statsmodels
from scipy import stats, special, optimize
from scipy.integrate import quad
import statsmodels.api as sm
from statsmodels.stats.multitest import multipletests

rng = np.random.default_rng(20261129)
out = {"origin": f"scipy {scipy.__version__}, numpy {np.__version__}, statsmodels {statsmodels.__version__}, make.py"}
out["normal_cdf"] = [[x, stats.norm.cdf(x)] for x in (-37, -8.5, -3, -1.96, -0.1, 0, 1e-9, 0.7, 2.5758, 6, 8.2)]
out["normal_quantile"] = [[p, stats.norm.ppf(p)] for p in (1e-300, 1e-20, 1e-6, 0.001, 0.025, 0.3, 0.5, 0.6, 0.95, 0.975, 0.999999)]
out["student_cdf"] = [[t, df, stats.t.cdf(t, df)] for df in (1, 2, 2.5, 4, 10, 30, 200, 5000) for t in (-40, -4.3, -1, -1e-6, 0, 0.3, 2.1, 12)]
out["student_two_sided_p"] = [[t, df, 2 * stats.t.sf(abs(t), df)] for df in (1, 2, 3, 8, 12, 50, 1000) for t in (1e-3, 0.5, -2.2, 5, 30, 400)]  # scipy 1.17 itself errs by 3e-9 at t = 1e-8
out["student_quantile"] = [[p, df, stats.t.ppf(p, df)] for df in (1, 2, 3, 7.5, 10, 40, 1000) for p in (1e-9, 0.0005, 0.025, 0.05, 0.4, 0.6, 0.95, 0.975, 0.99)]
out["incomplete_beta"] = [[a, b, x, special.betainc(a, b, x)] for a in (0.5, 1, 3, 40) for b in (0.5, 2, 25) for x in (0, 1e-6, 0.2, 0.5, 0.97, 1)]
v = rng.normal(size=23).round(6)
out["quantile_values"] = v.tolist()
out["quantile"] = [[q, float(np.quantile(v, q))] for q in (0, 0.05, 0.33, 0.5, 0.95, 1)]
ps = [[0.01, 0.04, 0.03, 0.005], [0.2, 0.2, 0.9], [1e-12, 0.5, 0.02, 0.02, 0.021, 0.0499, 1.0], [0.03]]
out["holm"] = [[p, multipletests(p, method="holm")[1].tolist()] for p in ps]

def layout(n_arms, n_blocks, missing):
    """Random layout; statsmodels OLS with treatment coding: the coefficients of arms are differences from arm 0."""
    cells = []
    arm_effect = rng.normal(0, 0.05, n_arms); block_effect = rng.normal(0, 0.03, n_blocks)
    for a in range(n_arms):
        for b in range(n_blocks):
            if (a, b) not in missing:
                cells.append([a, b, round(float(5 + arm_effect[a] + block_effect[b] + rng.normal(0, 0.01)), 9)])
    X = np.zeros((len(cells), n_arms + n_blocks - 1))
    for i, (a, b, y) in enumerate(cells):
        X[i, a] = 1
        if b: X[i, n_arms + b - 1] = 1
    y = np.array([c[2] for c in cells])
    fit = sm.OLS(y, X).fit()
    effects = [0.0]; errors = [0.0]; p = [None]
    for a in range(1, n_arms):
        c = np.zeros(X.shape[1]); c[a] = 1; c[0] = -1
        t = fit.t_test(c)
        effects.append(float(t.effect[0])); errors.append(float(np.ravel(t.sd)[0])); p.append(float(t.pvalue))
    return {"n_arms": n_arms, "n_blocks": n_blocks, "cells": cells, "effect": effects, "std_error": errors, "p": p,
            "residual_variance": float(fit.mse_resid), "df": float(fit.df_resid)}

out["layouts"] = [layout(2, 3, []), layout(5, 3, []), layout(9, 5, []), layout(4, 4, [(1, 2), (3, 0), (0, 3)]),
                  layout(6, 8, [(2, b) for b in range(2, 8)] + [(4, 1)]), layout(3, 3, [(0, 0), (1, 1), (2, 2)])]
x = layout(2, 6, [])
d = [c[2] for c in x["cells"] if c[0] == 1]; b = [c[2] for c in x["cells"] if c[0] == 0]
r = stats.ttest_rel(d, b)
out["paired"] = {"cells": x["cells"], "n_blocks": 6, "mean": float(np.mean(np.subtract(d, b))), "sd": float(np.std(np.subtract(d, b), ddof=1)), "p": float(r.pvalue)}

def crossing(c, looks):
    """Chance that a standardised random walk leaves +-c at one of the looks: nested adaptive quadrature is too slow, so a fine grid."""
    n = 2001
    s = np.linspace(-c, c, n); g = stats.norm.pdf(s)
    for k in range(2, looks + 1):
        e = c * np.sqrt(k); t = np.linspace(-e, e, n)
        w = np.full(n, s[1] - s[0]); w[0] /= 2; w[-1] /= 2
        g = (stats.norm.pdf(t[:, None] - s[None, :]) * (w * g)[None, :]).sum(1); s = t
    w = np.full(n, s[1] - s[0]); w[0] /= 2; w[-1] /= 2
    return 1 - float((w * g).sum())

out["pocock"] = []
for alpha in (0.05, 0.01, 0.1):
    for looks in (2, 3, 5, 8):
        c = optimize.brentq(lambda c: crossing(c, looks) - alpha, stats.norm.isf(alpha / 2), stats.norm.isf(alpha / 2 / looks), xtol=1e-9)
        out["pocock"].append([alpha, looks, 2 * stats.norm.sf(c)])
out["pocock_published"] = [[0.05, 2, 2.178], [0.05, 3, 2.289], [0.05, 4, 2.361], [0.05, 5, 2.413], [0.05, 6, 2.453], [0.05, 7, 2.485], [0.05, 8, 2.512], [0.01, 5, 2.986], [0.1, 5, 2.122]]
# Levels printed for 3 looks at 0.05, to four digits, in Pocock (1977), Table 1; bounds in Jennison and Turnbull (2000), Table 2.1.
json.dump(out, open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "stats.json"), "w"), indent=None, separators=(",", ":"))
